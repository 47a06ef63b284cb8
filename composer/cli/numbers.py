"""Numbers between commas, as several options take them."""

from __future__ import annotations

import re

from composer.errors import ComposerError
from composer.spec.places import brief

THOUSAND = 1024


def read_numbers(said: str | None, option: str, refusal: type[ComposerError], *, thousands: bool = True) -> tuple[int, ...]:
    """``512,1k,64k``, where ``thousands`` lets ``k`` stand for 1,024; none where the option is left out. Raises ``refusal``."""
    if said is None:
        return ()
    numbers = []
    for word in (part.strip() for part in said.split(",")):
        found = re.fullmatch(r"([0-9]{1,12})([kK]?)" if thousands else r"([0-9]{1,12})()", word)
        if found is None:
            such = "512,4k, where 4k is 4,096" if thousands else "0,1,2"
            raise refusal(f"{option}: {brief(word)} is no number; expected such as {such}.")
        numbers.append(int(found[1]) * (THOUSAND if found[2] else 1))
    return tuple(numbers)
