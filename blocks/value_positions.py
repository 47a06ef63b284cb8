"""Positions of tokens in the values: for memories whose weights do not depend on distance."""

from __future__ import annotations

from functools import partial
from typing import Annotated, ClassVar, Literal

from pydantic import PositiveFloat

from blocks.initialise import Fill
from blocks.legend import Float, Int, Shape, Tensor, torch
from blocks.operation import EVERY, Call, Form, Kind, Operation, Port, State
from blocks.part import Fresh, Parameters, Part, Problem
from blocks.positions import Rope
from blocks.registry import Role
from blocks.tensors import accumulating, repeat_heads


class Vapor(Part):
    """Value acting positional rotations: a value enters as R^-s v_s, and the output at t is rotated by R^t. The contribution of s
    to t is then R^(t-s) v_s, for any weights. R rotates each pair of coordinates i and i + V/2 of a key head by its own angle,
    which is learned; query heads have the rotation of their key head.
    """

    role: ClassVar[str] = "value position"
    equation: ClassVar[str] = "o_t = R^t Σ_s p(s|t) R^(-s) v_s, R = diag of rotations by ω_i, ω_i = θ^(-2i/V) at the start, i < V/2"
    source: ClassVar[str] = "Latte, appendix B.4, eq. 20"
    incidental: ClassVar[frozenset[str]] = frozenset({"theta"})
    kind: Literal["vapor"] = "vapor"
    theta: PositiveFloat = 10000.0
    """Base of the frequencies at the start."""

    def misfit(self, shape: Shape) -> Problem | None:
        if shape.value_dim % 2 == 0:
            return None
        return (
            f"vapor rotates pairs of coordinates, and values have {shape.value_dim} coordinates; remove it, or make these even",
            (),
        )

    def parameters(self, shape: Shape) -> dict[str, Fresh]:
        """ω in radians a position, one a pair of coordinates and key head."""
        start = Fill("the frequencies of rope", partial(_rope_frequencies, theta=self.theta))
        return {"frequency": Fresh((shape.key_heads, shape.value_dim // 2), start, precise=True)}

    def operation(self, shape: Shape) -> Operation:
        """On the way in: R^-s v_s."""
        value = Port("value", Kind.VALUE, shape.key_heads, shape.value_dim)
        return Operation(reads=(value,), gives=(value,), forms=(Form(EVERY, "as defined", self._enter),))

    def way_out(self, shape: Shape) -> Operation:
        """R^t o_t."""
        output = Port("output", Kind.OUTPUT, shape.heads, shape.value_dim)
        return Operation(reads=(output,), gives=(output,), forms=(Form(EVERY, "as defined", self._leave),))

    def _enter(self, parameters: Parameters, call: Call, *, value: Tensor) -> tuple[tuple[Tensor], State]:
        return (self.enter(parameters, value, call.tokens.position),), {}

    def _leave(self, parameters: Parameters, call: Call, *, output: Tensor) -> tuple[tuple[Tensor], State]:
        return (self.leave(parameters, output, call.tokens.position),), {}

    def flops(self, shape: Shape, tokens: int) -> int:
        return 3 * (shape.heads + shape.key_heads) * shape.value_dim

    def enter(
        self, parameters: Parameters, value: Float[Tensor, "B T K V"], position: Int[Tensor, "B T"]
    ) -> Float[Tensor, "B T K V"]:
        """R^-s v_s."""
        return _rotate(value, parameters["frequency"], -position)

    def leave(
        self, parameters: Parameters, output: Float[Tensor, "B T H V"], position: Int[Tensor, "B T"]
    ) -> Float[Tensor, "B T H V"]:
        """R^t o_t."""
        return _rotate(output, parameters["frequency"], position)


def _rope_frequencies(tensor: Tensor, _generator: torch.Generator | None, *, theta: float) -> None:
    tensor.copy_(Rope(theta=theta).frequencies(2 * tensor.shape[-1]).expand_as(tensor))


def _rotate(
    states: Float[Tensor, "B T H V"], frequency: Float[Tensor, "K half"], position: Int[Tensor, "B T"]
) -> Float[Tensor, "B T H V"]:
    """Rotate each pair of coordinates by its frequency times the position, in the accumulating dtype."""
    dtype = accumulating(states.dtype)
    angles = repeat_heads(position[..., None, None].to(dtype) * frequency.to(dtype), states.shape[2])
    cosine, sine = angles.cos(), angles.sin()
    first, second = states.to(dtype).chunk(2, dim=-1)
    rotated = torch.cat((first * cosine - second * sine, first * sine + second * cosine), dim=-1)
    return rotated.to(states.dtype)


VALUE_POSITIONS = Role("value position", Vapor, Vapor)
ValuePositionConfig = Annotated[Vapor, VALUE_POSITIONS]
