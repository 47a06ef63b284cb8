"""ALiBi's slopes as a decay, as in Lightning Attention: a constant for each head."""

from __future__ import annotations

import math
from typing import ClassVar, Literal

from blocks.gates.base import DecayRank, PerOwnHead
from blocks.legend import Float, Shape, Tensor, torch
from blocks.part import Parameters
from blocks.tensors import accumulating, repeat_heads


class Slopes(PerOwnHead):
    """log α_h = -2^(-8 h / N) for head h = 1, …, N of its group: the query heads, or the key heads with ``per: key_head``.

    If N is not a power of two, the first heads have the slopes of the next smaller power, and the others every second slope of
    the next larger power, as in ALiBi's code.
    """

    equation: ClassVar[str] = "log α_h = -2^(-8h/N), h = 1 … N"
    source: ClassVar[str] = (
        "Press et al. 2021, arXiv:2108.12409; as a decay: Qin et al. 2024, arXiv:2401.04658 (without its layers' factor)"
    )
    rank_of_decay: ClassVar[DecayRank] = "head"
    kind: Literal["slopes"] = "slopes"

    def log_decay(self, parameters: Parameters, hidden: Float[Tensor, "B T C"], shape: Shape) -> Float[Tensor, "B T N"]:
        slopes = torch.tensor(slopes_of(self.own_heads(shape)), dtype=torch.float64, device=hidden.device)
        log_decay = repeat_heads(-slopes.to(accumulating(hidden.dtype)), shape.state_heads, dim=0)
        return log_decay.expand(*hidden.shape[:2], -1)


def slopes_of(heads: int) -> list[float]:
    """Return the slope of each of this many heads, in nats per token."""
    power = 1 << int(math.log2(heads))
    even = [2.0 ** (-8 * head / power) for head in range(1, power + 1)]
    between = [2.0 ** (-8 * head / (2 * power)) for head in range(1, 2 * power + 1, 2)]
    return even + between[: heads - power]
