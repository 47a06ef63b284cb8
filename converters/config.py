"""Reading one value of a ``config.json``, with an error that names the key, what it holds and what was expected."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from converters.errors import ConfigError

Value = TypeVar("Value")

LARGEST = 2**31
"""No size of a model is meant to be larger."""
MOST_LAYERS = 10_000
"""What is made of a model is made layer by layer: no number of them is meant to be larger."""


def positive_int(config: Mapping[str, object], key: str, default: int | None = None, most: int = LARGEST) -> int:
    """A count; ``default`` where the key is missing or null, an error where there is none."""
    expected = f"a positive whole number of at most {most:,}"
    return _checked(config, key, default, expected, lambda v: v if _is_int(v) and 0 < v <= most else None)


def number(config: Mapping[str, object], key: str, default: float | None = None) -> float:
    """A number of at least 0."""
    return _checked(config, key, default, "a number of at least 0", lambda v: float(v) if _is_number(v) and v >= 0 else None)


def positive_number(config: Mapping[str, object], key: str, default: float | None = None) -> float:
    """A number greater than 0."""
    return _checked(config, key, default, "a number greater than 0", lambda v: float(v) if _is_number(v) and v > 0 else None)


def switch(config: Mapping[str, object], key: str, default: bool) -> bool:
    return _checked(config, key, default, "true or false", lambda v: v if isinstance(v, bool) else None)


def word(config: Mapping[str, object], key: str, known: tuple[str, ...]) -> Any:
    """One of the words that are known; the first where the key is missing or null."""
    return _checked(config, key, known[0], f"one of {', '.join(known)}", lambda v: v if v in known else None)


def token_ids(config: Mapping[str, object], key: str, default: int | None) -> int | list[int] | None:
    """A token's number, several of them, or None where the config says null."""
    value = config.get(key, default)
    if value is None or _is_int(value) or (isinstance(value, list) and value and all(_is_int(one) for one in value)):
        return value  # type: ignore[return-value]
    raise _refusal(key, value, "a token's number, a list of them or null")


def token_id(config: Mapping[str, object], key: str, default: int | None) -> int | None:
    """A token's number, or None where the config says null."""
    value = token_ids(config, key, default)
    if isinstance(value, list):
        raise _refusal(key, value, "a token's number or null")
    return value


def _checked(
    config: Mapping[str, object], key: str, default: Value | None, expected: str, accept: Callable[..., Value | None]
) -> Value:
    value = config.get(key)
    if value is None:
        if default is None:
            raise ConfigError(f"config.json has no {key!r}; expected {expected}.")
        return default
    accepted = accept(value)
    if accepted is None:
        raise _refusal(key, value, expected)
    return accepted


def _refusal(key: str, value: object, expected: str) -> ConfigError:
    return ConfigError(f"config.json says {key}: {value!r}; expected {expected}.")


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
