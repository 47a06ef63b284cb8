"""Rotary embeddings whose frequencies depend on the length of the text so far, read from a model's ``config.json``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

KINDS = frozenset({"dynamic", "longrope"})
"""The rope types of transformers whose frequencies follow from the largest position of each call."""
BY_LAYER_TYPE = frozenset({"gemma3_text"})
"""Families whose ``rope_scaling`` applies to the layers that see all tokens, and not to those with a sliding window."""


@dataclass(frozen=True)
class LengthRotation:
    """A rope type whose frequencies change once a text has more than ``tokens`` tokens."""

    kind: str
    tokens: int | None
    """None: the config does not contain the number."""


def length_rotations(config: Mapping[str, Any], windows: tuple[int | None, ...] | None, layers: int) -> dict[int, LengthRotation]:
    """Return the rotation of each layer whose frequencies depend on the length of the text so far, by the layer's index.

    windows: the sliding window of each layer, as ``converters.local_layers`` returns it.
    """
    values = config.get("rope_parameters") or config.get("rope_scaling")
    if not isinstance(values, Mapping):
        return {}
    types = config.get("layer_types")
    types = types if isinstance(types, list) and len(types) == layers else [None] * layers
    # transformers gives the config's own length priority, except over rotations that are named by the type of layer.
    by_type = {name: _rotation(of, of, config) for name, of in values.items() if isinstance(of, Mapping)}
    everywhere = _rotation(values, config, values, config)
    found = {layer: by_type.get(kind, everywhere) for layer, kind in enumerate(types)}
    if windows is not None and config.get("model_type") in BY_LAYER_TYPE and not by_type:
        found = {layer: rotation for layer, rotation in found.items() if windows[layer] is None}
    return {layer: rotation for layer, rotation in found.items() if rotation is not None}


def _rotation(values: Mapping[str, Any], *lengths: Mapping[str, Any]) -> LengthRotation | None:
    """lengths: where the original length may be, by priority; the last is the config, with its largest length."""
    kind = values.get("rope_type", values.get("type"))
    if kind not in KINDS:
        return None
    tokens = lengths[-1].get("max_position_embeddings")
    if kind == "longrope":
        originals = (of.get("original_max_position_embeddings") for of in lengths)
        tokens = next((original for original in originals if original is not None), tokens)
    return LengthRotation(str(kind), tokens if isinstance(tokens, int) and tokens > 0 else None)
