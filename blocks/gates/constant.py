"""RetNet's decay: a constant for each head."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import PositiveFloat

from blocks.gates.base import DecayRank, PerOwnHead
from blocks.legend import Float, Shape, Tensor, torch
from blocks.part import Parameters
from blocks.tensors import accumulating, repeat_heads


class Constant(PerOwnHead):
    """α_h = 1 - 2^(-exponent - h) for head h = 0, 1, … of its group: the memory of each head is twice as long as that of the
    one before. The heads are the query heads, or the key heads with ``per: key_head``."""

    equation: ClassVar[str] = "α_h = 1 - 2^(-exponent - h)"
    source: ClassVar[str] = "Sun et al. 2023, arXiv:2307.08621, eq. 8"
    rank_of_decay: ClassVar[DecayRank] = "head"
    kind: Literal["constant"] = "constant"
    exponent: PositiveFloat = 5.0
    """With 5, the first head loses 1/32 of its state at each token."""

    def log_decay(self, parameters: Parameters, hidden: Float[Tensor, "B T C"], shape: Shape) -> Float[Tensor, "B T N"]:
        heads = torch.arange(self.own_heads(shape), device=hidden.device, dtype=torch.float64)
        log_decay = torch.log1p(-torch.exp2(-self.exponent - heads)).to(accumulating(hidden.dtype))
        return repeat_heads(log_decay, shape.state_heads, dim=0).expand(*hidden.shape[:2], -1)
