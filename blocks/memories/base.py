"""What the memories share: a name, a position of their own, and a weight in the head's read."""

from __future__ import annotations

import math
from typing import Annotated, ClassVar, Literal

from pydantic import Field, StringConstraints

from blocks import initialise
from blocks.flow import accumulating
from blocks.legend import Float, Shape, Tensor
from blocks.part import Fresh, Parameters, Part
from blocks.positions import PositionConfig

LOLCATS_FACTOR = math.log(0.1 / 0.9)
"""LoLCATs starts its window factors at σ = 0.1."""


class Memory(Part):
    """Holds past pairs in some form, and answers a query with a partial attention."""

    role: ClassVar[str] = "memory"
    bounded: ClassVar[bool]
    """It holds a fixed number of pairs, so pairs fall out of it."""
    reads: ClassVar[Literal["pairs", "features", "inputs"]]
    """What it is fed: pairs as they are, their features, or the hidden states that the head mixes."""
    exact: ClassVar[bool] = False
    """It weighs its pairs by softmax of q·k / √D."""

    name: Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_]*$")] | None = None
    """What its parameters are called by; left out, its kind."""
    position: PositionConfig | None = None
    """How queries and keys are turned in this memory. Left out: as the head says."""
    weight: Literal["learned", "token"] | Annotated[float, Field(gt=0, lt=1)] | None = None
    """Its weight σ among the memories of the head, one a head: learned (from σ = 0.1, as LoLCATs), a linear function of each
    token's (mixed) hidden state, fixed, or none."""

    def has_mass(self) -> bool:
        """Whether its answer comes with a mass, so that it can share a denominator."""
        return True

    def problem(self, shape: Shape) -> str | None:
        """Why the memory cannot stand on these sizes, in words for its user; None where it can."""
        return None

    def problem_both_ways(self) -> str | None:
        """Why it cannot answer tokens that see those after them, too; None where it can."""
        return f"a `{self.kind}` memory only looks back"  # pyright: ignore[reportAttributeAccessIssue] - each declares its own

    def parameters(self, shape: Shape) -> dict[str, Fresh]:
        if self.weight == "token":
            return {"weight": Fresh((shape.heads, shape.hidden_size), initialise.normal(shape.hidden_size))}
        if self.weight == "learned":
            return {"weight": Fresh((shape.heads,), initialise.constant(LOLCATS_FACTOR))}
        return {}

    def weighing(self, shape: Shape) -> int:
        """Operations that ``logit`` takes a token."""
        return 2 * shape.hidden_size * shape.heads if self.weight == "token" else 0

    def logit(self, parameters: Parameters, inputs: Float[Tensor, "B T C"], heads: int) -> Tensor | None:
        """The weight before its sigmoid, in the accumulating dtype: one a head (H), or one a token and head (B T H)."""
        kind = accumulating(inputs.dtype)
        if self.weight == "token":
            return (inputs.to(parameters["weight"].dtype) @ parameters["weight"].T).to(kind)
        if self.weight == "learned":
            return parameters["weight"].to(kind)
        if isinstance(self.weight, float):
            return inputs.new_full((heads,), math.log(self.weight) - math.log1p(-self.weight), dtype=kind)
        return None
