"""The rules that the layers of a resolved document must keep, wherever it was read from."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from composer.spec.resolve import Resolved


def check_layers(resolved: Resolved) -> None:
    """Raise ValueError unless the groups of each layer divide its heads, and all fields of memories are set."""
    size = resolved.dimensions
    if len(resolved.layers) != size.layers:
        raise ValueError(f"has heads for {len(resolved.layers):,} layers, and the model has {size.layers:,}")
    without = set(size.without_attention)
    if any(bool(groups) == (layer in without) for layer, groups in enumerate(resolved.layers)):
        raise ValueError("has heads for a layer without attention, or none for a layer with attention")
    for layer in set(resolved.layers) - {()}:
        if unknown := [group.head for group in layer if group.head not in resolved.heads]:
            raise ValueError(f"has no head {unknown[0]}, which a layer names")
        if any(group.heads * size.key_heads != group.key_heads * size.heads for group in layer):
            raise ValueError("has a group of heads that splits a group of key heads")
        if sum(group.heads for group in layer) != size.heads or len({group.head for group in layer}) < len(layer):
            raise ValueError("has a layer whose groups are not its heads")
    if any(memory.name is None or memory.position is None for head in resolved.heads.values() for memory in head.memory):
        raise ValueError("has a memory that leaves its name or its position open")
