"""Attention sinks of the model around a head: one logit per head, without a value."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from blocks.flow import Partial
from blocks.legend import Float, Shape, Tensor, torch
from blocks.operation import EVERY, Call, Form, Kind, Operation, Port, State
from blocks.part import Parameters, Unnamed
from blocks.reads import TakesPartials
from blocks.tensors import accumulating


class Sinks(Unnamed, TakesPartials):
    """Adds the mass of a head's sink to the mass of one memory, whose output shrinks by as much."""

    role: ClassVar[str] = "sinks"
    equation: ClassVar[str] = "o_t ← o_t · σ(lse_t - s), lse_t ← log(exp(lse_t) + exp(s))"
    source: ClassVar[str] = "OpenAI 2025, gpt-oss, arXiv:2508.10925, section 2.2"

    def operation(self, shape: Shape) -> Operation:
        partial = Port("partial", Kind.PARTIAL, shape.heads, shape.value_dim)
        return Operation(
            reads=(partial, Port("sinks", Kind.SINKS, shape.heads, 1)),
            gives=(partial,),
            forms=(Form(EVERY, "added to the denominator", self._run),),
        )

    def _run(
        self, parameters: Parameters, call: Call, *, partial: Partial, sinks: Float[Tensor, " H"]
    ) -> tuple[tuple[Partial], State]:
        """Return the partial with the mass of the sink added. The output of an empty memory is 0, with the mass of the sink."""
        assert partial.lse is not None, "needs_mass was set for the memory"
        sinks = sinks.to(accumulating(sinks.dtype))
        share = torch.sigmoid(partial.lse - sinks)[..., None].to(partial.output.dtype)
        return (replace(partial, output=partial.output * share, lse=torch.logaddexp(partial.lse, sinks)),), {}
