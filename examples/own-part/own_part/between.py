"""A gate whose decay moves between two rates."""

from __future__ import annotations

from typing import ClassVar, Literal, Self

from pydantic import PositiveFloat, model_validator

from blocks import initialise
from blocks.gates.base import DecayRank, PerOwnHead
from blocks.legend import Float, Shape, Tensor
from blocks.part import FieldError, Fresh, Parameters
from blocks.tensors import accumulating, affine, repeat_heads


class Between(PerOwnHead):
    """log α_t moves from -slowest to -fastest with a sigmoid of the token, one number a head."""

    equation: ClassVar[str] = "log α_t = -(slowest + (fastest - slowest) · σ(x_t W + b)), W: C × heads"
    source: ClassVar[str] = "examples/own-part"
    rank_of_decay: ClassVar[DecayRank] = "head"
    kind: Literal["own_part.between"] = "own_part.between"
    slowest: PositiveFloat = 0.001
    """The least that a state forgets at a token."""
    fastest: PositiveFloat = 0.5
    """The most that a state forgets at a token."""

    @model_validator(mode="after")
    def _the_fastest_is_faster(self) -> Self:
        if self.fastest <= self.slowest:
            raise FieldError(f"is {self.fastest:g}; expected more than `slowest`, which is {self.slowest:g}", "fastest")
        return self

    def parameters(self, shape: Shape) -> dict[str, Fresh]:
        heads = self.own_heads(shape)
        return {
            "weight": Fresh((heads, shape.hidden_size), initialise.fan_in(shape.hidden_size)),
            "bias": Fresh((heads,), initialise.constant(-4.0), precise=True),
        }

    def flops(self, shape: Shape, tokens: int) -> int:
        return 2 * shape.hidden_size * self.own_heads(shape)

    def log_decay(self, parameters: Parameters, hidden: Float[Tensor, "B T C"], shape: Shape) -> Float[Tensor, "B T N"]:
        logits = affine(hidden, parameters["weight"], parameters["bias"], accumulating(hidden.dtype))
        rate = self.slowest + (self.fastest - self.slowest) * logits.sigmoid()
        return repeat_heads(-rate, shape.state_heads)
