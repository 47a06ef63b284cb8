"""Arguments as people write them: one thing where several may stand, numbers between commas, words that have to be known."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import get_args

from composer.errors import ComposerError
from composer.numbers import read_numbers
from composer.spec.places import brief, nearest
from converters.trunk import Dtype

Reference = str | os.PathLike[str]
"""A folder, or a model of the Hub: ``OWNER/NAME``."""
LEAST_SEED, MOST_SEED = -(2**63), 2**63 - 1
"""What every generator takes; below 0 for builds and what was sampled before."""
Numbers = int | str | Sequence[int]
"""One number, several, or such as ``"512,4k"``, where 4k is 4,096."""


def several(said: Reference | Sequence[Reference] | None) -> tuple[str, ...]:
    """One or more of what is named, as text."""
    if said is None:
        return ()
    return tuple(os.fspath(one) for one in ([said] if isinstance(said, str | os.PathLike) else said))


def path_of(said: Reference | None) -> Path | None:
    return None if said is None else Path(said)


def numbers_of(said: Numbers | None, option: str, refusal: type[ComposerError], *, thousands: bool = True) -> tuple[int, ...]:
    """The numbers, in their order. Raises ``refusal``."""
    if said is None or isinstance(said, str):
        return read_numbers(said, option, refusal, thousands=thousands)
    found = tuple([said] if isinstance(said, int) else said)
    wrong = [one for one in found if isinstance(one, bool) or not isinstance(one, int)]
    if wrong:
        raise refusal(f"{option}: {brief(str(wrong[0]))} is no whole number.")
    return found


def check_known(option: str, said: str, known: Iterable[str], refusal: type[ComposerError] = ComposerError) -> None:
    """Raises ``refusal`` where a word is none of those that are known."""
    known = list(known)
    if said not in known:
        raise refusal(f"{option}: {brief(said)} is not known{nearest(said, known) or '.'} Known: {', '.join(known)}.")


def check_dtype(said: str | None, refusal: type[ComposerError] = ComposerError) -> None:
    """Raises ``refusal`` where there is no such type of weights."""
    if said is not None:
        check_known("dtype", said, get_args(Dtype), refusal)


def check_seed(said: int) -> None:
    """Raises ComposerError where no generator of random numbers can be started with it."""
    if isinstance(said, bool) or not isinstance(said, int) or not LEAST_SEED <= said <= MOST_SEED:
        raise ComposerError(f"seed: {brief(str(said))} is no seed; say a whole number from 0 to {MOST_SEED:,}.")


def check_range(option: str, said: float, least: float, most: float | None = None) -> None:
    """Raises ComposerError where a number is below ``least``, or above ``most``."""
    if not (said >= least and (most is None or said <= most)):
        raise ComposerError(f"{option} {said:g}: say at least {least:g}{'' if most is None else f', and at most {most:g}'}.")
