"""The write strength of the delta rule: one number per token, which is stored with the pair when memories evict it."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field

from blocks import initialise
from blocks.legend import Float, Shape, Tensor, torch
from blocks.operation import EVERY, Call, Form, Kind, Operation, Port, State
from blocks.part import Fresh, Integer, Parameters, Part, Per
from blocks.registry import Role
from blocks.tensors import accumulating, affine


class Rate(Part):
    """β_t of the pair's token."""

    role: ClassVar[str] = "rate"

    def heads(self, shape: Shape) -> int:
        """How many rates a token has."""
        raise NotImplementedError

    def operation(self, shape: Shape) -> Operation:
        return Operation(
            reads=(Port("hidden", Kind.HIDDEN, dim=shape.hidden_size),),
            gives=(Port("rate", Kind.NUMBERS, self.heads(shape), 1),),
            forms=(Form(EVERY, "as defined", self._run),),
        )

    def _run(self, parameters: Parameters, call: Call, *, hidden: Tensor) -> tuple[tuple[Tensor], State]:
        return (self.rate(parameters, hidden, call.shape),), {}

    def rate(self, parameters: Parameters, hidden: Float[Tensor, "B T C"], shape: Shape) -> Float[Tensor, "B T n"]:
        """β_t, from 0 (not written) over 1 (what was under this key is replaced) to 2."""
        raise NotImplementedError


def _number(value: Any) -> Any:
    """Return a whole number as a float: pydantic takes 0 for False."""
    return float(value) if type(value) is int else value


class Learned(Rate):
    """A sigmoid of the hidden state."""

    equation: ClassVar[str] = "β_t = largest · σ(x_t W + b), W: C × heads"
    source: ClassVar[str] = "Yang et al. 2024, arXiv:2406.06484; up to 2: Grazzi et al. 2024, arXiv:2411.12537"
    incidental: ClassVar[frozenset[str]] = frozenset({"bias"})
    kind: Literal["learned"] = "learned"
    largest: Annotated[Literal[1, 2], Integer] = 1
    """With 2, the state can also reverse the sign of the value of a key. With 1, it can only replace the value."""
    bias: Annotated[float | Literal[False], BeforeValidator(_number)] = 0.0
    """b at the start; false: no b."""
    per: Per = "query_head"

    def heads(self, shape: Shape) -> int:
        return shape.heads if self.per == "query_head" else shape.key_heads

    def parameters(self, shape: Shape) -> dict[str, Fresh]:
        heads = self.heads(shape)
        fresh = {"weight": Fresh((heads, shape.hidden_size), initialise.fan_in(shape.hidden_size))}
        return fresh if self.bias is False else fresh | {"bias": Fresh((heads,), initialise.constant(self.bias))}

    def flops(self, shape: Shape, tokens: int) -> int:
        return 2 * shape.hidden_size * self.heads(shape)

    def rate(self, parameters: Parameters, hidden: Float[Tensor, "B T C"], shape: Shape) -> Float[Tensor, "B T n"]:
        rate = affine(hidden, parameters["weight"], parameters.get("bias"), accumulating(hidden.dtype)).sigmoid()
        return rate if self.largest == 1 else self.largest * rate


class Fixed(Rate):
    """A constant rate."""

    equation: ClassVar[str] = "β_t = β"
    source: ClassVar[str] = "Widrow & Hoff 1960"
    kind: Literal["fixed"] = "fixed"
    value: Annotated[float, Field(gt=0, lt=2)] = 1.0
    """β."""

    def heads(self, shape: Shape) -> int:
        return 1

    def rate(self, parameters: Parameters, hidden: Float[Tensor, "B T C"], shape: Shape) -> Float[Tensor, "B T n"]:
        return torch.full((*hidden.shape[:2], 1), self.value, dtype=accumulating(hidden.dtype), device=hidden.device)


RATES = Role("rate", Rate, Learned, Fixed)
RateConfig = Annotated[Rate, RATES]
