"""The sizes of the model around the heads, which a spec is resolved against."""

from __future__ import annotations

from typing import Self

from pydantic import Field, PositiveInt, model_validator

from blocks.legend import Shape
from blocks.part import Closed
from blocks.positions import Llama3Scaling

ATTENTION = "model.layers.{layer}.self_attn"


class Dimensions(Closed):
    """The sizes that a source model, or the spec's own trunk, gives its heads."""

    hidden_size: PositiveInt
    layers: PositiveInt
    heads: PositiveInt
    key_heads: PositiveInt
    head_dim: PositiveInt
    rope_theta: float | None
    """None: the source turns in a way of its own, which its own code computes."""
    rope_scaling: Llama3Scaling | None = None
    attention: str = Field(default=ATTENTION, exclude_if=lambda value: value == ATTENTION)
    """The name of a layer's attention in the model, with ``{layer}`` for its index."""

    @model_validator(mode="after")
    def _heads_share_evenly(self) -> Self:
        if self.heads % self.key_heads:
            raise ValueError(f"{self.heads} query heads cannot share {self.key_heads} key heads evenly")
        return self

    def shape(self, heads: int) -> Shape:
        """The shape of a group of ``heads`` query heads, which take whole key groups."""
        key_heads = heads * self.key_heads // self.heads
        return Shape(hidden_size=self.hidden_size, heads=heads, key_heads=key_heads, head_dim=self.head_dim)
