"""Gated linear attention's decay: data-dependent, one for each feature, through a matrix of low rank."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import PositiveFloat, PositiveInt

from blocks import initialise
from blocks.calibration import Attended
from blocks.gates.base import DecayRank, PerOwnHead, bias_of_rate, flops_of_matrices, logits, matrices
from blocks.legend import Float, Shape, Tensor, torch
from blocks.part import Fresh, Parameters
from blocks.tensors import repeat_heads


class PerChannel(PerOwnHead):
    """log α_t = logsigmoid(x_t W₁ W₂ + b) / temperature, one number per feature of each state head. The gate as a matrix is G_t
    = α_tᵀ 1: all value columns of a feature have the same decay (LAWCAT, eq. 4)."""

    equation: ClassVar[str] = "log α_t = logsigmoid(x_t W₁ W₂ + b) / τ, W₁: C × rank, W₂: rank × (heads · F)"
    source: ClassVar[str] = "Yang et al. 2023, arXiv:2312.06635, section 4.4; LAWCAT, eq. 4 and table 8"
    rank_of_decay: ClassVar[DecayRank] = "channel"
    incidental: ClassVar[frozenset[str]] = frozenset({"bias"})
    kind: Literal["channel"] = "channel"
    rank: PositiveInt | Literal["full"] = 16
    """Number of columns of W₁. full: one matrix."""
    temperature: PositiveFloat = 16.0
    """τ. A larger τ makes the decay slower at the start."""
    bias: float = 0.0
    """The initial value of b."""

    def columns(self, shape: Shape) -> int:
        """Return the number of decays per token: one per feature of each of the gate's own heads."""
        return self.own_heads(shape) * shape.features

    def parameters(self, shape: Shape) -> dict[str, Fresh]:
        columns = self.columns(shape)
        bias = Fresh((columns,), initialise.constant(self.bias), precise=True)
        return matrices(shape.hidden_size, columns, self.rank) | {"bias": bias}

    def flops(self, shape: Shape, tokens: int) -> int:
        return flops_of_matrices(shape.hidden_size, self.columns(shape), self.rank)

    def calibrate(self, parameters: Parameters, attended: Attended, shape: Shape) -> dict[str, Tensor]:
        """Compute b from the mean age of the pairs that each head attends to, in closed form. All features of a head start with
        the same b."""
        return {"bias": bias_of_rate(attended.rate(self.own_heads(shape)), self.temperature).repeat_interleave(shape.features)}

    def log_decay(self, parameters: Parameters, hidden: Float[Tensor, "B T C"], shape: Shape) -> Float[Tensor, "B T N F"]:
        # In place: nothing else uses the output of logsigmoid.
        decay = torch.nn.functional.logsigmoid(logits(parameters, hidden)).div_(self.temperature)
        decay = decay.view(*decay.shape[:2], -1, shape.features)
        return repeat_heads(decay, shape.state_heads)
