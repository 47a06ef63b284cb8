"""Specs with their own trunk, and small models built from them."""

from __future__ import annotations

from typing import Any

import torch

import composer
from composer.model.classes import Composed

HEADS: dict[str, dict[str, Any]] = {
    "softmax": {"memory": ["full"]},
    "lolcats": {
        "feature_map": {"kind": "hedgehog", "dim": 4},
        "memory": [{"kind": "window", "size": 5, "weight": "learned"}, "state"],
    },
    "lawcat": {
        "position": "none",
        "conv": "causal",
        "feature_map": {"kind": "hedgehog", "share": "qk"},
        "memory": [{"kind": "state", "gate": {"kind": "channel", "rank": 4}}],
    },
}
TRUNKS: dict[str, dict[str, Any]] = {
    "llama": {},
    "classic": {"norm": "layer", "mlp": {"kind": "plain", "activation": "relu"}, "embedding": "sinusoidal", "bias": True},
    "learned": {"norm": "layer", "mlp": "plain", "embedding": "learned", "length": 64},
    "untied": {"tied": False, "mlp": {"kind": "gated", "width": 24, "activation": "gelu"}, "embedding": "sinusoidal"},
}


def document(head: str = "softmax", **trunk: Any) -> dict[str, Any]:
    """Return a spec with 2 layers of 4 query heads and 2 key heads of 8 numbers."""
    sizes = {"width": 32, "layers": 2, "heads": 4, "key_heads": 2, "vocabulary": 97}
    return {"compose": 1, "name": "x", "head": HEADS[head], "trunk": sizes | trunk}


def model(head: str = "softmax", **trunk: Any) -> Composed:
    """Return a model in float64 with large enough weights, biases and norms included."""
    made = composer.build(document(head, **trunk), fresh=True, dtype="float64")
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter += 0.2 * torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)
    return made
