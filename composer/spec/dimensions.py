"""The sizes of the model around the heads, which a spec is resolved against."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, NonNegativeInt, PositiveInt, model_validator

from blocks.legend import Shape
from blocks.part import Closed
from blocks.positions import Llama3Scaling
from converters.config import MOST_LAYERS

ATTENTION = "model.layers.{layer}.self_attn"


class Dimensions(Closed):
    """The sizes of heads, from a source model or from the spec's own trunk."""

    hidden_size: PositiveInt
    layers: Annotated[PositiveInt, Field(le=MOST_LAYERS)]
    heads: PositiveInt
    key_heads: PositiveInt
    head_dim: PositiveInt
    value_dim: PositiveInt | None = Field(default=None, exclude_if=lambda size: size is None)
    """Numbers of a value. None: as many as of a key, ``head_dim``."""

    rope_theta: float | None
    """The base of the rotary frequencies; null if the source has another kind of rotation, which its own code computes."""
    rope_scaling: Llama3Scaling | None = None
    attention: str = Field(default=ATTENTION, exclude_if=lambda value: value == ATTENTION)
    """The name of a layer's attention in the model, with ``{layer}`` for its index."""

    cached: PositiveInt | None = Field(default=None, exclude_if=lambda numbers: numbers is None)
    """Numbers that the source caches of a token in each layer. None: all keys and values."""

    without_attention: tuple[NonNegativeInt, ...] = Field(default=(), exclude_if=lambda layers: not layers)
    """The layers of a hybrid without softmax attention, which have no heads and are kept unchanged."""

    sees_ahead: bool = Field(default=False, exclude_if=lambda sees: not sees)
    """Whether the source lets the tokens of an image see each other in both directions."""

    @model_validator(mode="after")
    def _heads_share_evenly(self) -> Self:
        if self.heads % self.key_heads:
            raise ValueError(f"{self.heads} query heads cannot share {self.key_heads} key heads evenly")
        if self.value_dim == self.head_dim:
            raise ValueError(f"values have {self.head_dim} numbers, as keys have: leave `value_dim` out")
        without = set(self.without_attention)
        if not without < set(range(self.layers)) or len(without) < len(self.without_attention):
            raise ValueError(f"`without_attention` must list some of the layers 0 to {self.layers - 1}, each once")
        return self

    @property
    def size_of_values(self) -> int:
        """Numbers of a value."""
        return self.value_dim or self.head_dim

    @property
    def cached_per_token(self) -> int:
        """Numbers that the source caches of a token in each layer."""
        return self.cached or self.key_heads * (self.head_dim + self.size_of_values)

    @property
    def with_attention(self) -> tuple[int, ...]:
        """The layers that have heads."""
        without = set(self.without_attention)
        return tuple(layer for layer in range(self.layers) if layer not in without)

    def shape(self, heads: int) -> Shape:
        """Return the shape of a group of ``heads`` query heads, a multiple of the query heads per key head."""
        key_heads = heads * self.key_heads // self.heads
        return Shape(
            hidden_size=self.hidden_size,
            heads=heads,
            key_heads=key_heads,
            head_dim=self.head_dim,
            value_dim=self.size_of_values,
        )
