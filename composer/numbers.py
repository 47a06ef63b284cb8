"""Numbers as people write them: ``4k`` tokens are 4,096, and several stand between commas."""

from __future__ import annotations

import re

from composer.errors import ComposerError
from composer.spec.places import brief

THOUSAND = 1024
Tokens = int | str
"""A number of tokens, or such as ``"4k"``, which is 4,096."""


def read_numbers(said: str | None, option: str, refusal: type[ComposerError], *, thousands: bool = True) -> tuple[int, ...]:
    """``512,1k,64k``, where ``thousands`` lets ``k`` stand for 1,024; none where the option is left out. Raises ``refusal``."""
    such = "512,4k, where 4k is 4,096" if thousands else "0,1,2"
    words = () if said is None else (part.strip() for part in said.split(","))
    return tuple(_number(word, option, refusal, such, thousands=thousands) for word in words)


def tokens_of(said: Tokens, option: str, refusal: type[ComposerError], least: int = 1) -> int:
    """One number of tokens, at least so many. Raises ``refusal``."""
    if isinstance(said, str):
        said = _number(said.strip(), option, refusal, "4096, or 4k, which is the same", thousands=True)
    if isinstance(said, bool) or not isinstance(said, int):
        raise refusal(f"{option}: {brief(said)} is no number of tokens; expected such as 4096, or 4k, which is the same.")
    if said < least:
        raise refusal(f"{option}: {said:,} tokens; say at least {least}.")
    return said


def _number(word: str, option: str, refusal: type[ComposerError], such: str, *, thousands: bool) -> int:
    found = re.fullmatch(r"([0-9]{1,12})([kK]?)" if thousands else r"([0-9]{1,12})()", word)
    if found is None:
        raise refusal(f"{option}: {brief(word)} is no number; expected such as {such}.")
    return int(found[1]) * (THOUSAND if found[2] else 1)
