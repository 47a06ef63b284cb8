"""Rotary embeddings whose frequencies depend on the length of the text so far, read from a model's ``config.json``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from converters.family import Config
from converters.rotary import LENGTH, OLD_NAMES

KINDS = frozenset({"dynamic", "longrope"})
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

    windows: the sliding window of each layer, as ``converters.local_layers`` returns it.
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
    if not old and kind not in KINDS:
        return None
    longest, own = config.get("max_position_embeddings"), settings.get(LENGTH)
    if kind == "dynamic":
        return LengthRotation("dynamic", _number(longest))
    # transformers prefers the length of the config to that of the settings, except where these are nested or have an old name.
    of_config = config.get(LENGTH, LENGTHS.get(family))
    first, second = (own, of_config) if nested or old else (of_config, own)
    return LengthRotation("longrope", _number(first) or _number(second) or _number(longest))


def _number(value: object) -> int | None:
    return value if isinstance(value, int) and value > 0 else None
