"""How wrong the state is about a pair."""

from __future__ import annotations

from typing import ClassVar, Literal

from blocks.legend import Float, Tensor, torch
from blocks.scores.base import RESOLUTION, Contenders, Score


class SelfRecall(Score):
    """The distance from a pair's value to what the state below answers to its own key."""

    equation: ClassVar[str] = "‖φ(k)S / φ(k)·z - v‖, S before the fall"
    source: ClassVar[str] = "LoLA, arXiv:2505.23666, eq. 9"
    reads: ClassVar[Literal["pair", "state", "window"]] = "state"
    kind: Literal["self_recall"] = "self_recall"

    def score(self, pairs: Contenders) -> Float[Tensor, "B E H"]:
        assert pairs.answered is not None, "the graph wires the state below"
        return torch.linalg.vector_norm(pairs.answered - pairs.value, dim=-1)

    def resolution(self, pairs: Contenders, score: Float[Tensor, "B E H"]) -> Float[Tensor, "B E H"]:
        """A share of the two lengths whose difference it is: what the state knows well has a score that is nothing but rounding."""
        assert pairs.answered is not None, "the graph wires the state below"
        assert pairs.norm is not None
        return RESOLUTION * (torch.linalg.vector_norm(pairs.answered, dim=-1) + pairs.norm)
