"""Rotary positions of transformers' families, in the spellings of all of its versions: checks of their settings, and the embeddings
whose frequencies depend on the length of the text so far.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from converters.bounded import brief
from converters.config import is_number, positive_int, positive_number
from converters.errors import ConfigError
from converters.family import Config

NUMBERS: Mapping[str, tuple[str, ...]] = {
    "default": (),
    "linear": ("factor",),
    "dynamic": ("factor",),
    "yarn": ("factor",),
    "longrope": (),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor"),
    "proportional": (),
}
"""The types of rotary positions that transformers has, each with the numbers that it needs."""
FACTORS = ("short_factor", "long_factor")
"""The lists of numbers of the type longrope."""
LENGTH = "original_max_position_embeddings"
OLD_NAMES: Mapping[str, tuple[str, ...]] = {"phi3": ("su", "yarn")}
"""By family, names that the type longrope had."""


def check_rotary(model_type: str, config: Config, head_dim: int) -> None:
    """Raise ConfigError if transformers cannot compute the rotary positions of this config.

    head_dim: numbers of a query head.
    """
    key = "rope_scaling" if config.get("rope_scaling") else "rope_parameters"
    for field, settings in _settings(key, config.get(key)):
        _check(model_type, config, head_dim, field, settings)


def _settings(key: str, settings: object) -> Iterator[tuple[str, Mapping[str, object]]]:
    """Yield the settings of a config, with their place in it. Some families have several, by the type of a layer."""
    if settings is None:
        return
    if not isinstance(settings, Mapping):
        raise ConfigError(f"config.json has {key}: {brief(settings)}; expected a mapping or null.")
    nested = {name: value for name, value in settings.items() if isinstance(value, Mapping)}
    if nested and not {"rope_type", "type"} & set(settings):
        yield from ((f"{key}.{name}", value) for name, value in nested.items())
    else:
        yield key, settings


def _check(model_type: str, config: Config, head_dim: int, field: str, settings: Mapping[str, object]) -> None:
    name = "rope_type" if "rope_type" in settings else "type"
    kind = settings.get(name, "default")
    old = kind in OLD_NAMES.get(model_type, ())
    if old and settings.get(LENGTH) is None:
        raise ConfigError(
            f"config.json has {field}.{name}: {brief(kind)}, an old name of 'longrope', without {field}.{LENGTH}, which "
            "transformers does not read. Write 'longrope' in its place, in a copy of the model."
        )
    if not old and (not isinstance(kind, str) or kind not in NUMBERS):
        near = " 'su' is the old name of 'longrope'." if kind == "su" else ""
        raise ConfigError(
            f"config.json has {field}.{name}: {brief(kind)}; transformers has rotary positions of the types "
            f"{', '.join(NUMBERS)}.{near}"
        )
    kind = "longrope" if old else str(kind)
    for number in NUMBERS[kind]:
        positive_number(settings, number)
    if kind == "longrope":
        _check_factors(config, head_dim, field, settings)
    if settings.get(LENGTH) is not None:
        positive_int(settings, LENGTH)


def _check_factors(config: Config, head_dim: int, field: str, settings: Mapping[str, object]) -> None:
    share = positive_number(settings, "partial_rotary_factor", positive_number(config, "partial_rotary_factor", 1.0))
    pairs = int(head_dim * share) // 2
    for key in FACTORS:
        factors = settings.get(key)
        if not isinstance(factors, list) or len(factors) != pairs or not all(map(is_number, factors)):
            actual = f"a list of {len(factors)}" if isinstance(factors, list) else brief(factors)
            raise ConfigError(
                f"config.json has {field}.{key}: {actual}; expected a list of {pairs} numbers, one for each pair that rotates."
            )


LENGTH_DEPENDENT = frozenset({"dynamic", "longrope"})
"""The rope types of transformers whose frequencies follow from the largest position of each call."""
BY_LAYER_TYPE = frozenset({"gemma3_text"})
"""Families whose ``rope_scaling`` applies to the layers that see all tokens, and not to those with a sliding window."""
LENGTHS: Mapping[str, int] = {"phi3": 4096}
"""By family, the value of ``original_max_position_embeddings`` in configs that lack it."""


@dataclass(frozen=True)
class LengthRotation:
    """A rope type whose frequencies change once a text has more than ``tokens`` tokens."""

    kind: str
    tokens: int | None
    """None: the config does not contain the number."""


def length_rotations(config: Config, windows: tuple[int | None, ...] | None, layers: int) -> dict[int, LengthRotation]:
    """Return the rotation of each layer whose frequencies depend on the length of the text so far, by the layer's index.

    windows: the sliding window of each layer, as ``local_layers`` returns it.
    """
    values = config.get("rope_scaling") or config.get("rope_parameters")
    if not isinstance(values, Mapping):
        return {}
    types = config.get("layer_types")
    types = types if isinstance(types, list) and len(types) == layers else [None] * layers
    by_type = {name: _rotation(config, settings, nested=True) for name, settings in values.items() if isinstance(settings, Mapping)}
    everywhere = _rotation(config, values, nested=False)
    rotations = {layer: by_type.get(kind, everywhere) for layer, kind in enumerate(types)}
    if windows is not None and config.get("model_type") in BY_LAYER_TYPE and not by_type:
        rotations = {layer: rotation for layer, rotation in rotations.items() if windows[layer] is None}
    return {layer: rotation for layer, rotation in rotations.items() if rotation is not None}


def _rotation(config: Config, settings: Config, *, nested: bool) -> LengthRotation | None:
    """nested: the settings are those of one type of layer."""
    family, kind = str(config.get("model_type")), settings.get("rope_type", settings.get("type"))
    old = kind in OLD_NAMES.get(family, ())
    if not old and kind not in LENGTH_DEPENDENT:
        return None
    max_length, original_length = config.get("max_position_embeddings"), settings.get(LENGTH)
    if kind == "dynamic":
        return LengthRotation("dynamic", _number(max_length))
    # transformers prefers the length of the config to that of the settings, except where these are nested or have an old name.
    of_config = config.get(LENGTH, LENGTHS.get(family))
    first, second = (original_length, of_config) if nested or old else (of_config, original_length)
    return LengthRotation("longrope", _number(first) or _number(second) or _number(max_length))


def _number(value: object) -> int | None:
    return value if isinstance(value, int) and value > 0 else None
