"""The trunk of a model that is built from nothing: all of it that is not its heads. A spec that has one needs no source."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from blocks.part import Closed, FieldError, Silu, bare
from converters.config import LARGEST, LARGEST_NUMBER, MOST_LABELS, MOST_LAYERS
from converters.trunk import Activation

TrunkSize = Annotated[int, Field(gt=0, le=LARGEST)]


class GatedMLP(Closed):
    """down(act(gate(x)) ⊙ up(x)), without biases (Shazeer 2020, arXiv:2002.05202)."""

    kind: Literal["gated"] = "gated"
    width: TrunkSize | None = None
    """Numbers between up and down. Left out: 8/3 of the trunk's width, up to the next multiple of 64."""
    activation: Annotated[Activation, Silu] = "silu"
    """act; gelu is the exact one."""

    def complete(self, width: int) -> Self:
        """With its own width, in a trunk of this one."""
        return self.model_copy(update={"width": self.width or 64 * -(-8 * width // (3 * 64))})


class PlainMLP(Closed):
    """down(act(up(x))), without biases (Vaswani et al. 2017, arXiv:1706.03762, eq. 2)."""

    kind: Literal["plain"] = "plain"
    width: TrunkSize | None = None
    """Numbers between up and down. Left out: 4 times the trunk's width."""
    activation: Annotated[Activation, Silu] = "gelu"
    """act; gelu is the exact one."""

    def complete(self, width: int) -> Self:
        """With its own width, in a trunk of this one."""
        return self.model_copy(update={"width": self.width or 4 * width})


MLPConfig = Annotated[GatedMLP | PlainMLP, Field(discriminator="kind"), BeforeValidator(bare)]


class TrunkSpec(Closed):
    """Embedding, layers with a norm before heads and MLP, a last norm, and the output. Names and defaults are Llama's."""

    width: TrunkSize
    """Numbers of a hidden state."""
    layers: Annotated[int, Field(gt=0, le=MOST_LAYERS)]
    """How many, each of heads and an MLP."""
    heads: TrunkSize
    """Query heads of a layer."""
    key_heads: TrunkSize | None = None
    """Key heads of a layer, each shared by equally many query heads. Left out: one a query head."""
    head_dim: TrunkSize | None = None
    """Numbers of a query, a key or a value. Left out: width / heads."""
    norm: Literal["rms", "layer"] = "rms"
    """rms: RMSNorm; layer: LayerNorm, with weight and bias."""
    norm_epsilon: Annotated[float, Field(gt=0, le=LARGEST_NUMBER)] = 1e-5
    """Added to the mean square, or to the variance."""
    mlp: MLPConfig = GatedMLP()
    """What follows the heads in each layer."""
    vocabulary: TrunkSize
    """Tokens that have an embedding."""
    tied: bool = True
    """Whether the output matrix is the embedding."""
    embedding: Literal["none", "sinusoidal", "learned"] = "none"
    """Absolute positions that are added to the tokens' embeddings. sinusoidal: sin and cos of arXiv:1706.03762, section 3.5."""
    length: TrunkSize | None = None
    """How many positions are learned, with ``embedding: learned``; a longer document is refused."""
    bias: bool = False
    """Whether the four projections of the heads have biases."""
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """In training, the share of numbers that is dropped of the embedding and of what heads and MLP add to the hidden state."""
    theta: Annotated[float, Field(gt=0, le=LARGEST_NUMBER)] = 10000.0
    """The base of a ``position: rope`` without its own theta."""
    labels: Annotated[int, Field(gt=0, le=MOST_LABELS)] | None = None
    """Makes a classifier of so many classes, out of the mean of the tokens' last hidden states. Left out: a language model."""

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.head_dim is None and self.width % self.heads:
            raise FieldError(
                f"width {self.width} does not divide by {self.heads} heads: change one of them, or set `head_dim`", "width"
            )
        if self.key_heads is not None and self.heads % self.key_heads:
            raise FieldError(
                f"{self.heads} query heads cannot share {self.key_heads} key heads evenly; `heads` must be a multiple", "key_heads"
            )
        if self.embedding == "learned" and self.length is None:
            raise FieldError("`embedding: learned` needs `length`: how many positions there are", "embedding")
        if self.embedding != "learned" and self.length is not None:
            raise FieldError(
                "`length` is the number of learned positions, and none are learned: remove it, or set `embedding: learned`",
                "length",
            )
        if self.labels is not None and not self.tied:
            raise FieldError(
                "a classifier (`labels`) has no output matrix, so `tied: false` has no effect: remove one of them", "tied"
            )
        return self

    def complete(self) -> Self:
        """With everything written out that is left out."""
        return self.model_copy(
            update={
                "key_heads": self.key_heads or self.heads,
                "head_dim": self.head_dim or self.width // self.heads,
                "mlp": self.mlp.complete(self.width),
            }
        )
