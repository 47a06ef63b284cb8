"""Kimi Delta Attention's decay: Mamba-2's, with a step for each feature."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import NonNegativeFloat, PositiveFloat, PositiveInt

from blocks.calibration import Attended
from blocks.gates.base import DecayRank, PerOwnHead, flops_of_matrices, logits, matrices
from blocks.gates.softplus import bias_of_step, log_decay_of, rate_between, step_bias
from blocks.legend import Float, Shape, Tensor, torch
from blocks.part import Fresh, Parameters
from blocks.tensors import repeat_heads


class SoftplusChannel(PerOwnHead):
    """log α_t = -exp(A) · softplus(x_t W₁ W₂ + b), one number per feature of each state head, with one A per head.

    exp(A) is uniform between ``slowest`` and ``fastest`` at the start, softplus(b) is between 0.001 and 0.1.
    """

    equation: ClassVar[str] = "log α_t = -exp(A) · softplus(x_t W₁ W₂ + b), W₁: C × rank, W₂: rank × (heads · F), A one a head"
    source: ClassVar[str] = "Kimi team 2025, arXiv:2510.26692, as in flash-linear-attention's layer"
    rank_of_decay: ClassVar[DecayRank] = "channel"
    incidental: ClassVar[frozenset[str]] = frozenset({"slowest", "fastest"})
    kind: Literal["softplus_channel"] = "softplus_channel"
    rank: PositiveInt | Literal["full"] = 16
    """Number of columns of W₁. full: one matrix."""
    slowest: NonNegativeFloat = 1.0
    """The smallest initial exp(A)."""
    fastest: PositiveFloat = 16.0
    """The largest initial exp(A)."""

    def parameters(self, shape: Shape) -> dict[str, Fresh]:
        heads = self.own_heads(shape)
        columns = heads * shape.features
        return matrices(shape.hidden_size, columns, self.rank) | {
            "bias": Fresh((columns,), step_bias(), precise=True),
            "rate": Fresh((heads,), rate_between(self.slowest, self.fastest), precise=True),
        }

    def calibrate(self, parameters: Parameters, attended: Attended, shape: Shape) -> dict[str, Tensor]:
        """Compute b from the mean age of the pairs that each head attends to, in closed form. A keeps its initial value, and
        all features of a head start with the same b."""
        bias = bias_of_step(attended.rate(self.own_heads(shape)), parameters["rate"])
        return {"bias": bias.repeat_interleave(shape.features)}

    def flops(self, shape: Shape, tokens: int) -> int:
        return flops_of_matrices(shape.hidden_size, self.own_heads(shape) * shape.features, self.rank)

    def log_decay(self, parameters: Parameters, hidden: Float[Tensor, "B T C"], shape: Shape) -> Float[Tensor, "B T N F"]:
        steps = torch.nn.functional.softplus(logits(parameters, hidden))
        steps = steps.view(*steps.shape[:2], -1, shape.features)
        return repeat_heads(log_decay_of(steps, parameters["rate"][:, None]), shape.state_heads)
