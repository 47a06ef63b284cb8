"""Specs and sources for the tests of resolving."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from blocks.positions import Llama3Scaling
from composer.errors import GraphError
from composer.spec import load_spec
from composer.spec.resolve import Dimensions, Resolved, resolve

LLAMA3 = Llama3Scaling(factor=8, low_frequency_factor=1, high_frequency_factor=4, original_length=8192)
STEEPER = LLAMA3.model_copy(update={"factor": 32.0})
SIZE = Dimensions(hidden_size=24, layers=6, heads=8, key_heads=4, head_dim=8, rope_theta=1e4)
STRETCHED = SIZE.model_copy(update={"rope_theta": 5e5, "rope_scaling": LLAMA3})
LOLCATS: dict[str, Any] = {
    "compose": 1,
    "name": "x",
    "head": {
        "position": "rope",
        "conv": {"kind": "causal"},
        "feature_map": {"kind": "hedgehog"},
        "memory": [{"kind": "window", "size": 64, "weight": "learned"}, {"kind": "state", "gate": {"kind": "channel"}}],
        "read": "shared",
    },
}
EXACT: dict[str, Any] = {"memory": ["full"]}
DROP: dict[str, Any] = {"memory": [{"kind": "window", "evict": "drop"}]}


def resolved(document: dict[str, Any], size: Dimensions = SIZE) -> Resolved:
    """Return the resolved document of a spec."""
    return resolve(load_spec(document), size)


def changed(path: str, value: Any) -> dict[str, Any]:
    """Return LoLCATs with another value at ``head.memory.0.size``."""
    document = copy.deepcopy(LOLCATS)
    *way, last = (int(step) if step.isdigit() else step for step in path.split("."))
    place: Any = document
    for step in way:
        place = place[step]
    place[last] = value
    return document


def groups(**heads: int) -> list[dict[str, Any]]:
    """Return the groups of query heads of one layer in order."""
    return [{"head": name, "heads": count} for name, count in heads.items()]


def refused(document: dict[str, Any], size: Dimensions = SIZE) -> tuple[tuple[str | int, ...], str]:
    """Return the path and the message with which the document is rejected."""
    with pytest.raises(GraphError) as caught:
        resolved(document, size)
    return caught.value.path, str(caught.value)
