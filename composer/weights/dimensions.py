"""The sizes of a source's attention, which a spec is resolved against."""

from __future__ import annotations

from typing import Any

from blocks.positions import Llama3Scaling
from composer.errors import SourceError
from composer.spec.dimensions import Dimensions
from converters.hosts import Host
from converters.trunk import Sizes, Trunk


def dimensions(trunk: Sizes) -> Dimensions:
    """The dimensions that a spec resolves against. Raises SourceError for a model that cannot be composed with heads."""
    if isinstance(trunk, Host):
        if trunk.refused is not None:
            raise SourceError(trunk.refused)
        return Dimensions(**_sizes(trunk), rope_theta=None, attention=trunk.attention)
    assert isinstance(trunk, Trunk), "there are two"
    scaling = trunk.rope_scaling
    return Dimensions(
        **_sizes(trunk),
        rope_theta=trunk.rope_theta,
        rope_scaling=None
        if scaling is None
        else Llama3Scaling(
            factor=scaling["factor"],
            low_frequency_factor=scaling["low_freq_factor"],
            high_frequency_factor=scaling["high_freq_factor"],
            original_length=scaling["original_max_position_embeddings"],
        ),
    )


def _sizes(trunk: Sizes) -> dict[str, Any]:
    return {name: getattr(trunk, name) for name in ("hidden_size", "layers", "heads", "key_heads", "head_dim")}
