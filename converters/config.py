"""Reading one value of a ``config.json``, with an error that names the key, what it holds and what was expected."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from converters.bounded import brief
from converters.errors import ConfigError

FieldValue = TypeVar("FieldValue")

LARGEST = 2**31
"""The largest size of a model that is accepted."""
MOST_LAYERS = 10_000
"""The most layers that are accepted, as work grows with them."""
MOST_LABELS = 100_000
"""The most classes that are accepted: a classifier's config names each of them."""
LARGEST_NUMBER = 1e12
"""The largest rate, base or deviation that is accepted; float32 holds its square."""


def positive_int(config: Mapping[str, object], key: str, default: int | None = None, maximum: int = LARGEST) -> int:
    """Return a count; ``default`` where the key is missing or null, an error where there is none."""
    expected = f"a positive whole number of at most {maximum:,}"
    return _check(config, key, default, expected, lambda v: v if _is_int(v) and 0 < v <= maximum else None)


def number(config: Mapping[str, object], key: str, default: float | None = None, maximum: float = LARGEST_NUMBER) -> float:
    """Return a number of at least 0."""
    expected = f"a number from 0 to {maximum:g}"
    return _check(config, key, default, expected, lambda v: float(v) if is_number(v) and 0 <= v <= maximum else None)


def positive_number(config: Mapping[str, object], key: str, default: float | None = None) -> float:
    """Return a number greater than 0."""
    expected = f"a number greater than 0, and at most {LARGEST_NUMBER:g}"
    return _check(config, key, default, expected, lambda v: float(v) if is_number(v) and 0 < v <= LARGEST_NUMBER else None)


def switch(config: Mapping[str, object], key: str, default: bool) -> bool:
    return _check(config, key, default, "true or false", lambda v: v if isinstance(v, bool) else None)


def word(config: Mapping[str, object], key: str, words: tuple[str, ...]) -> Any:
    """Return one of the words in ``words``; the first if the key is missing or null."""
    return _check(config, key, words[0], f"one of {', '.join(words)}", lambda v: v if v in words else None)


def token_ids(config: Mapping[str, object], key: str, vocabulary: int, default: int | None) -> int | list[int] | None:
    """Return a token's number, several of them, or None if the config has null. -1 is an older form of null."""
    value = config.get(key, default)
    if key not in config or are_tokens(value, vocabulary):
        return value  # type: ignore[return-value]
    raise _refusal(key, value, f"a token's number, a list of them or null; 0 to {vocabulary - 1:,} have an embedding")


def are_tokens(value: object, vocabulary: int) -> bool:
    """Whether a value is a token's number, a list of them or None, and all of them have an embedding."""
    tokens = value if isinstance(value, list) and value else [value]
    if value is None:
        return True
    return all(isinstance(token, int) and not isinstance(token, bool) and -1 <= token < vocabulary for token in tokens)


def token_id(config: Mapping[str, object], key: str, vocabulary: int, default: int | None = None) -> int | None:
    """Return a token's number, or None if the config has null."""
    value = token_ids(config, key, vocabulary, default)
    if isinstance(value, list):
        raise _refusal(key, value, "a token's number or null")
    return value


FLOAT = "__float__"
"""The key of a mapping that transformers writes in place of a number that JSON does not have: ``{"__float__": "Infinity"}``."""
_FLOATS: Mapping[str, float] = {"Infinity": math.inf, "-Infinity": -math.inf, "NaN": math.nan}


def encode_floats(value: Any) -> Any:
    """Return a value of a config with infinite numbers and NaN written as transformers writes them."""
    if isinstance(value, float) and not math.isfinite(value):
        return {FLOAT: "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"}
    return _map_values(value, encode_floats)


def decode_floats(value: Any) -> Any:
    """Return a value of a config with the numbers that ``encode_floats`` has written."""
    if isinstance(value, Mapping) and value.keys() == {FLOAT} and isinstance(value[FLOAT], str) and value[FLOAT] in _FLOATS:
        return _FLOATS[value[FLOAT]]
    return _map_values(value, decode_floats)


def _map_values(value: Any, change: Callable[[Any], Any]) -> Any:
    """Change all that a value of JSON contains."""
    if isinstance(value, Mapping):
        return {key: change(item) for key, item in value.items()}
    return [change(item) for item in value] if isinstance(value, list | tuple) else value


def _check(
    config: Mapping[str, object], key: str, default: FieldValue | None, expected: str, accept: Callable[..., FieldValue | None]
) -> FieldValue:
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
    return ConfigError(f"config.json has {key}: {brief(value)}; expected {expected}.")


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def is_number(value: object) -> bool:
    """True for an integer or a float; True and False are none."""
    return isinstance(value, int | float) and not isinstance(value, bool)
