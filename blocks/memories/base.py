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
    reads: ClassVar[Literal["pairs", "features"]]
    """What it is fed: pairs as they are, or their features."""

    name: Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_]*$")] | None = None
    """What its parameters are called by; left out, its kind."""
    position: PositionConfig | None = None
    """How queries and keys are turned in this memory. Left out: as the head says."""
    weight: Literal["learned"] | Annotated[float, Field(gt=0, lt=1)] | None = None
    """Its weight σ among the memories of the head, one a head: learned (from σ = 0.1, as LoLCATs), fixed, or none."""

    def has_mass(self) -> bool:
        """Whether its answer comes with a mass, so that it can share a denominator."""
        return True

    def parameters(self, shape: Shape) -> dict[str, Fresh]:
        if self.weight != "learned":
            return {}
        return {"weight": Fresh((shape.heads,), initialise.constant(LOLCATS_FACTOR))}

    def logit(self, parameters: Parameters, output: Float[Tensor, "B T H V"]) -> Float[Tensor, " H"] | None:
        """The weight before its sigmoid, for the heads of ``output``, in the accumulating dtype."""
        if self.weight is None:
            return None
        if self.weight == "learned":
            return parameters["weight"].to(accumulating(output.dtype))
        fixed = math.log(self.weight) - math.log1p(-self.weight)
        return output.new_full(output.shape[2:3], fixed, dtype=accumulating(output.dtype))
