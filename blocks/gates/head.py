"""A data-dependent decay for each head."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import PositiveFloat

from blocks import initialise
from blocks.calibration import Attended
from blocks.gates.base import DecayRank, PerOwnHead, bias_of_rate
from blocks.legend import Float, Shape, Tensor, torch
from blocks.part import Fresh, Parameters
from blocks.tensors import accumulating, affine, repeat_heads


class PerHead(PerOwnHead):
    """log α_t = logsigmoid(x_t W + b) / temperature, one number per head."""

    equation: ClassVar[str] = "log α_t = logsigmoid(x_t W + b) / τ, W: C × heads"
    source: ClassVar[str] = "Yang et al. 2023, arXiv:2312.06635, section 4.4, with one decay a head"
    rank_of_decay: ClassVar[DecayRank] = "head"
    incidental: ClassVar[frozenset[str]] = frozenset({"bias"})
    kind: Literal["head"] = "head"
    temperature: PositiveFloat = 16.0
    """τ. A larger τ makes the decay slower at the start."""
    bias: float = 0.0
    """The initial value of b."""

    def parameters(self, shape: Shape) -> dict[str, Fresh]:
        heads = self.own_heads(shape)
        return {
            "weight": Fresh((heads, shape.hidden_size), initialise.fan_in(shape.hidden_size)),
            "bias": Fresh((heads,), initialise.constant(self.bias), precise=True),
        }

    def flops(self, shape: Shape, tokens: int) -> int:
        return 2 * shape.hidden_size * self.own_heads(shape)

    def calibrate(self, parameters: Parameters, attended: Attended, shape: Shape) -> dict[str, Tensor]:
        """Compute b from the mean age of the pairs that each head attends to, in closed form."""
        return {"bias": bias_of_rate(attended.rate(self.own_heads(shape)), self.temperature)}

    def log_decay(self, parameters: Parameters, hidden: Float[Tensor, "B T C"], shape: Shape) -> Float[Tensor, "B T N"]:
        dtype = accumulating(hidden.dtype)
        logits = affine(hidden, parameters["weight"], parameters["bias"], dtype)
        decay = torch.nn.functional.logsigmoid(logits).div_(self.temperature)
        return repeat_heads(decay, shape.state_heads)
