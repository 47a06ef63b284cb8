"""Numbers as users write them, and their bounds: ``4k`` tokens are 4,096, and several numbers are separated by commas."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from numbers import Integral, Real

from composer.errors import ComposerError
from composer.spec.places import brief

THOUSAND = 1024
TokenCount = int | str
"""A number of tokens, or such as ``"4k"``, which is 4,096."""
ByteCount = int | str
"""A number of bytes, or such as ``"6MiB"``."""
CountOrShare = int | float | str
"""A number of things, or a share of them such as 0.15 or ``"15%"``."""
UNITS = {"B": 1, "KiB": 1024, "MiB": 1024**2, "GiB": 1024**3}
Numbers = int | str | Sequence[int]
"""One number, several, or such as ``"512,4k"``, where 4k is 4,096."""
LEAST_SEED, MOST_SEED = -(2**63), 2**63 - 1
"""The range of seeds that every generator of random numbers accepts. Negative ones are for builds, and for earlier samples."""


def numbers_of(
    value: Numbers | None,
    option: str,
    error_class: type[ComposerError],
    *,
    least: int | None = 1,
    most: int | None = None,
    thousands: bool = True,
) -> tuple[int, ...]:
    """``read_numbers``, which raises ``error_class`` with the option's name."""
    with name_option(option, error_class):
        return read_numbers(value, least=least, most=most, thousands=thousands)


@contextmanager
def name_option(option: str, error_class: type[ComposerError]) -> Iterator[None]:
    """For the block, raise ValueErrors as ``error_class``, with the option's name in front."""
    try:
        yield
    except ValueError as error:
        raise error_class(f"{option}: {error}") from None


def whole_number(value: object, *, least: float | None = None, most: float | None = None, example: str = "") -> int:
    """Return a whole number within bounds. Raises ValueError. example: of what may be written."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        such = f", such as {example}" if example else ""
        raise ValueError(f"expected a whole number{_bound(None, least, None)}{such}, got {brief(value)}")
    if bound := _bound(int(value), least, most):
        raise ValueError(f"expected a whole number{bound}, got {int(value)}")
    return int(value)


def number_of(value: object, *, least: float | None = None, most: float | None = None) -> float:
    """Return a number within bounds. Raises ValueError."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise ValueError(f"expected a number{_bound(None, least, None)}, got {brief(value)}")
    if bound := _bound(float(value), least, most):
        raise ValueError(f"expected a number{bound}, got {float(value):g}")
    return float(value)


def read_numbers(
    value: Numbers | None, *, least: int | None = 1, most: int | None = None, thousands: bool = True
) -> tuple[int, ...]:
    """Return the numbers, in their order; in text ``k`` means 1,024 if ``thousands``. Raises ValueError."""
    if isinstance(value, str):
        values: Iterable[object] = [_read(word.strip(), thousands=thousands) for word in value.split(",")]
    else:
        values = () if value is None else value if isinstance(value, Sequence) else (value,)
    example = "512,4k, where 4k is 4,096" if thousands else "0,1,2"
    return tuple(whole_number(number, least=least, most=most, example=example) for number in values)


def read_tokens(value: TokenCount, *, least: int = 1) -> int:
    """Return a number of tokens, of which ``"4k"`` is 4,096. Raises ValueError."""
    count = _read(value.strip(), thousands=True) if isinstance(value, str) else value
    return whole_number(count, least=least, example="4096 or 4k")


def read_bytes(value: ByteCount, *, least: int = 1) -> int:
    """Return a number of bytes, of which ``"6MiB"`` is 6,291,456. Raises ValueError."""
    if isinstance(value, str):
        match = re.fullmatch(r"([0-9]{1,12}(?:\.[0-9]{1,6})?)\s*(B|KiB|MiB|GiB)?", value.strip())
        count = value if match is None else round(float(match[1]) * UNITS[match[2] or "B"])
    else:
        count = value
    return whole_number(count, least=least, example="6291456 or 6MiB")


def read_part(value: CountOrShare, *, least: int = 1) -> int | float:
    """Return a number of things, or a share of them between 0 and 1, also written as a percentage. Raises ValueError."""
    if isinstance(value, float) and 0 < value < 1:
        return value
    if isinstance(value, str) and (match := re.fullmatch(r"([0-9]{1,3}(?:\.[0-9]{1,6})?)\s*%", value.strip())):
        share = float(match[1]) / 100
        if not 0 < share < 1:
            raise ValueError(f"expected a share above 0% and below 100%, got {value.strip()}")
        return share
    count = _read(value.strip(), thousands=False) if isinstance(value, str) else value
    return whole_number(count, least=least, example="4 or 15%")


def _bound(value: float | None, least: float | None, most: float | None) -> str:
    """Return the bound that a value exceeds in words, or an empty text. None and NaN are within no bounds."""
    if least is not None and not (value is not None and value >= least):
        return f" of at least {least:,}"
    return f" of at most {most:,}" if most is not None and not (value is not None and value <= most) else ""


def _read(word: str, *, thousands: bool) -> int | str:
    """Return the number that a word represents, or the word itself if it is not a number."""
    match = re.fullmatch(r"(-?[0-9]{1,12})([kK]?)" if thousands else r"(-?[0-9]{1,12})()", word)
    return word if match is None else int(match[1]) * (THOUSAND if match[2] else 1)
