"""What a spec needs to know of a source: the sizes of its attention."""

from __future__ import annotations

from blocks.positions import Llama3Scaling
from composer.spec.resolve import Dimensions
from converters.trunk import Trunk


def dimensions(trunk: Trunk) -> Dimensions:
    """The dimensions that a spec resolves against."""
    scaling = trunk.rope_scaling
    return Dimensions(
        hidden_size=trunk.hidden_size,
        layers=trunk.layers,
        heads=trunk.heads,
        key_heads=trunk.key_heads,
        head_dim=trunk.head_dim,
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
