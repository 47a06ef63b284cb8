"""RWKV-7's decay: one for each feature, between a steepest decay and none."""

from __future__ import annotations

import math
from typing import Annotated, ClassVar, Literal

from pydantic import Field, PositiveInt

from blocks import initialise
from blocks.calibration import Attended
from blocks.gates.base import DecayRank, PerOwnHead, flops_of_matrices
from blocks.legend import Float, Shape, Tensor, torch
from blocks.part import Fresh, Parameters
from blocks.tensors import accumulating, affine, as_dtype, repeat_heads


class BoundedChannel(PerOwnHead):
    """log α_t = -steepest · σ(tanh(x_t W₁) W₂ + b), one number a feature of each state head.

    No decay is below exp(-steepest), so a feature of RWKV-7 keeps at least 0.545 of itself at each token. There b starts at another
    number for each layer and feature; here at one number for all.
    """

    equation: ClassVar[str] = "log α_t = -c · σ(tanh(x_t W₁) W₂ + b), W₁: C × rank, W₂: rank × (heads · F), c = e^(-1/2)"
    source: ClassVar[str] = "Peng et al. 2025, arXiv:2503.14456 (RWKV-7), as in flash-linear-attention's layer"
    rank_of_decay: ClassVar[DecayRank] = "channel"
    incidental: ClassVar[frozenset[str]] = frozenset({"bias"})
    kind: Literal["bounded_channel"] = "bounded_channel"
    rank: PositiveInt = 16
    """Columns of W₁."""
    steepest: Annotated[float, Field(gt=0, le=20)] = math.exp(-0.5)
    """c: the steepest decay."""
    bias: float = -4.0
    """b at the start."""

    def columns(self, shape: Shape) -> int:
        """Decays a token: one a feature of each of the gate's own heads."""
        return self.own_heads(shape) * shape.features

    def parameters(self, shape: Shape) -> dict[str, Fresh]:
        columns, width = self.columns(shape), shape.hidden_size
        return {
            "down": Fresh((self.rank, width), initialise.fan_in(width)),
            "up": Fresh((columns, self.rank), initialise.fan_in(self.rank)),
            "bias": Fresh((columns,), initialise.constant(self.bias), precise=True),
        }

    def flops(self, shape: Shape, tokens: int) -> int:
        return flops_of_matrices(shape.hidden_size, self.columns(shape), self.rank)

    def calibrate(self, parameters: Parameters, attended: Attended, shape: Shape) -> dict[str, Tensor]:
        """b by the mean age of what each head attends to, in closed form; all features of a head start alike."""
        share = attended.rate(self.own_heads(shape)) / self.steepest
        return {"bias": torch.logit(share, 1e-6).repeat_interleave(shape.features)}

    def log_decay(self, parameters: Parameters, hidden: Float[Tensor, "B T C"], shape: Shape) -> Float[Tensor, "B T N F"]:
        down = parameters["down"]
        inner = torch.nn.functional.linear(as_dtype(hidden, down.dtype), down).tanh()
        openness = affine(inner, parameters["up"], parameters["bias"], accumulating(hidden.dtype)).sigmoid()
        decay = -self.steepest * openness
        return repeat_heads(decay.view(*decay.shape[:2], -1, shape.features), shape.state_heads)
