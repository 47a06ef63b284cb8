"""No gate: the state does not decay."""

from __future__ import annotations

from typing import ClassVar, Literal

from blocks.gates.base import DecayRank, Gate
from blocks.legend import Shape, Tensor
from blocks.part import Parameters


class NoGate(Gate):
    """α = 1: plain linear attention."""

    equation: ClassVar[str] = "α_t = 1"
    source: ClassVar[str] = "Katharopoulos et al. 2020, arXiv:2006.16236"
    rank_of_decay: ClassVar[DecayRank] = "none"
    idle: ClassVar[bool] = True
    kind: Literal["none"] = "none"

    def log_decay(self, parameters: Parameters, hidden: Tensor, shape: Shape) -> None:
        return None
