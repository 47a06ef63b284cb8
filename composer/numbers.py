"""Numbers as people write them, and the bounds that they are held to: ``4k`` tokens are 4,096, several stand between commas."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from numbers import Integral, Real

from composer.errors import ComposerError
from composer.spec.places import brief

THOUSAND = 1024
TokenCount = int | str
"""A number of tokens, or such as ``"4k"``, which is 4,096."""
Numbers = int | str | Sequence[int]
"""One number, several, or such as ``"512,4k"``, where 4k is 4,096."""
LEAST_SEED, MOST_SEED = -(2**63), 2**63 - 1
"""The seeds that every generator of random numbers takes. Negative ones are for builds, and for earlier samples."""


def numbers_of(
    said: Numbers | None,
    option: str,
    refusal: type[ComposerError],
    *,
    least: int | None = 1,
    most: int | None = None,
    thousands: bool = True,
) -> tuple[int, ...]:
    """The numbers, in their order; in text ``k`` stands for 1,024, where ``thousands``. Raises ``refusal``."""
    such = "512,4k, where 4k is 4,096" if thousands else "0,1,2"
    if isinstance(said, str):
        found: Iterable[object] = [_read(word.strip(), thousands=thousands) for word in said.split(",")]
    else:
        found = () if said is None else said if isinstance(said, Sequence) else (said,)
    return tuple(_whole(one, option, refusal, such, least, most) for one in found)


def tokens_of(said: TokenCount, option: str, refusal: type[ComposerError], least: int = 1) -> int:
    """One number of tokens. Raises ``refusal``."""
    found = _read(said.strip(), thousands=True) if isinstance(said, str) else said
    return _whole(found, option, refusal, "4096, or 4k, which is the same", least, None)


def check_count(
    option: str, said: object, refusal: type[ComposerError] = ComposerError, *, least: int = 1, most: int | None = None
) -> None:
    """Raises ``refusal`` where ``said`` is no whole number within these bounds."""
    _whole(said, option, refusal, str(max(least, 1)), least, most)


def check_seed(said: object, refusal: type[ComposerError] = ComposerError, *, least: int = 0) -> None:
    """Raises ``refusal`` where ``said`` is no seed of a generator of random numbers."""
    check_count("--seed", said, refusal, least=least, most=MOST_SEED)


def check_range(
    option: str, said: object, least: float, most: float | None = None, refusal: type[ComposerError] = ComposerError
) -> None:
    """Raises ``refusal`` where ``said`` is no number within these bounds."""
    if isinstance(said, bool) or not isinstance(said, Real):
        raise refusal(f"{option}: {brief(said)} is no number; expected such as {max(least, 1 if most is None else most):g}.")
    _check_bounds(option, float(said), refusal, least, most)


def _whole(said: object, option: str, refusal: type[ComposerError], such: str, least: int | None, most: int | None) -> int:
    if isinstance(said, bool) or not isinstance(said, Integral):
        raise refusal(f"{option}: {brief(said)} is no whole number; expected such as {such}.")
    _check_bounds(option, int(said), refusal, least, most)
    return int(said)


def _check_bounds(option: str, said: float, refusal: type[ComposerError], least: float | None, most: float | None) -> None:
    figure = str(said) if isinstance(said, int) else f"{said:g}"
    if least is not None and not said >= least:  # so that NaN is refused, too
        raise refusal(f"{option} {figure}: say at least {least:,}.")
    if most is not None and said > most:
        raise refusal(f"{option} {figure}: say at most {most:,}.")


def _read(word: str, *, thousands: bool) -> int | str:
    """The number that a word stands for, or the word itself where it is no number."""
    found = re.fullmatch(r"(-?[0-9]{1,12})([kK]?)" if thousands else r"(-?[0-9]{1,12})()", word)
    return word if found is None else int(found[1]) * (THOUSAND if found[2] else 1)
