"""Mamba-2's decay: a rate per head times a data-dependent step, which is a softplus."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar, Literal

from pydantic import NonNegativeFloat, PositiveFloat

from blocks import initialise
from blocks.calibration import Attended
from blocks.gates.base import DecayRank, PerOwnHead, logits, matrices
from blocks.legend import Float, Shape, Tensor, torch
from blocks.operation import EVERY, Call, Form, Kind, Operation, Port, State
from blocks.part import Fresh, Parameters
from blocks.tensors import repeat_heads

SHORTEST, LONGEST = 1e-3, 0.1
"""The range of initial steps."""


def step_bias() -> initialise.Fill:
    """Fill b so that softplus(b) is log-uniform between the shortest and the longest step."""
    return initialise.softplus_log_uniform(SHORTEST, LONGEST)


def bias_of_step(decay: Float[Tensor, " n"], rate: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
    """Return b such that exp(rate) · softplus(b) = decay."""
    step = decay * torch.exp(-rate.to(decay.dtype))
    return step + torch.log(-torch.expm1(-step))


def log_decay_of(step: Tensor, rate: Tensor) -> Tensor:
    """Return -exp(A) times a step, at most 0."""
    return -rate.to(step.dtype).exp() * step


class Softplus(PerOwnHead):
    """log α_t = -exp(A) · softplus(x_t W + b), one number per head.

    exp(A) is uniform between ``slowest`` and ``fastest`` at the start: from 1 to 16 in Mamba-2, from 0 to 16 in the code of
    Gated DeltaNet and DeltaProduct. softplus(b) is between 0.001 and 0.1 at the start.
    """

    equation: ClassVar[str] = "log α_t = -exp(A) · softplus(x_t W + b), W: C × heads"
    source: ClassVar[str] = "Dao & Gu 2024, arXiv:2405.21060, section 7; Yang et al. 2024, arXiv:2412.06464"
    rank_of_decay: ClassVar[DecayRank] = "head"
    steps: ClassVar[bool] = True
    incidental: ClassVar[frozenset[str]] = frozenset({"slowest", "fastest"})
    kind: Literal["softplus"] = "softplus"
    slowest: NonNegativeFloat = 1.0
    """The smallest initial exp(A)."""
    fastest: PositiveFloat = 16.0
    """The largest initial exp(A)."""

    def parameters(self, shape: Shape) -> dict[str, Fresh]:
        heads = self.own_heads(shape)
        return matrices(shape.hidden_size, heads, "full") | {
            "bias": Fresh((heads,), step_bias(), precise=True),
            "rate": Fresh((heads,), rate_between(self.slowest, self.fastest), precise=True),
        }

    def calibrate(self, parameters: Parameters, attended: Attended, shape: Shape) -> dict[str, Tensor]:
        """Compute b from the mean age of the pairs that each head attends to, in closed form. A keeps its initial value."""
        return {"bias": bias_of_step(attended.rate(self.own_heads(shape)), parameters["rate"])}

    def flops(self, shape: Shape, tokens: int) -> int:
        return 2 * shape.hidden_size * self.own_heads(shape)

    def operation(self, shape: Shape) -> Operation:
        plain = super().operation(shape)
        step = Port("step", Kind.NUMBERS, shape.state_heads, 1, needed=False)
        return replace(plain, gives=(*plain.gives, step), forms=(Form(EVERY, "as defined", self._both),))

    def _both(self, parameters: Parameters, call: Call, *, hidden: Tensor) -> tuple[tuple[Tensor, Tensor], State]:
        return self._decay_and_step(parameters, hidden, call.shape), {}

    def log_decay(self, parameters: Parameters, hidden: Float[Tensor, "B T C"], shape: Shape) -> Float[Tensor, "B T N"]:
        return self._decay_and_step(parameters, hidden, shape)[0]

    def _decay_and_step(self, parameters: Parameters, hidden: Tensor, shape: Shape) -> tuple[Tensor, Tensor]:
        """Return the decay and the step of each state head."""
        step = torch.nn.functional.softplus(logits(parameters, hidden))
        decay = log_decay_of(step, parameters["rate"])
        return repeat_heads(decay, shape.state_heads), repeat_heads(step, shape.state_heads)


def rate_between(slowest: float, fastest: float) -> initialise.Fill:
    """Return a function that fills A, with exp(A) uniform between the two numbers, whichever is larger."""
    return initialise.logarithm_of_uniform(*sorted((slowest, fastest)))
