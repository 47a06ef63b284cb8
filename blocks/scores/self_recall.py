"""How wrong the state is about a pair."""

from __future__ import annotations

from typing import ClassVar, Literal

from blocks.legend import Float, Tensor
from blocks.scores.base import Contenders, Score, rounding_error


class SelfRecall(Score):
    """The distance between a pair's value and the output of the state below for the pair's own key."""

    equation: ClassVar[str] = "‖φ(k)S / φ(k)·z - v‖, S before the eviction"
    source: ClassVar[str] = "LoLA, arXiv:2505.23666, eq. 9"
    reads: ClassVar[Literal["pair", "state", "window"]] = "state"
    kind: Literal["self_recall"] = "self_recall"

    def score(self, pairs: Contenders) -> Float[Tensor, "B E H"]:
        assert pairs.distance is not None, "the graph wires the state below"
        return pairs.distance

    def resolution(self, pairs: Contenders, score: Float[Tensor, "B E H"]) -> Float[Tensor, "B E H"]:
        """Return the rounding error of ‖v̂ - v‖: a share of ‖v̂ - v‖ + ‖v‖, which bounds ‖v̂‖. A share of the score alone would be too
        little where v̂ is almost v, since the score is then a difference of two nearly equal vectors."""
        assert pairs.distance is not None, "the graph wires the state below"
        assert pairs.norm is not None
        return rounding_error(score.dtype) * (pairs.distance + pairs.norm)
