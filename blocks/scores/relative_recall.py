"""How wrong the state is about a pair, for its size."""

from __future__ import annotations

from typing import ClassVar, Literal

from blocks.legend import Float, Tensor, torch
from blocks.scores.base import Contenders
from blocks.scores.self_recall import SelfRecall


class RelativeRecall(SelfRecall):
    """The error of ``self_recall`` as a share of the value's length, so that large values win no place by being large."""

    equation: ClassVar[str] = "‖φ(k)S / φ(k)·z - v‖ / ‖v‖, S before the eviction"
    source: ClassVar[str] = "this project, after LoLA, arXiv:2505.23666, eq. 9"
    kind: Literal["relative_recall"] = "relative_recall"  # pyright: ignore[reportIncompatibleVariableOverride]

    def score(self, pairs: Contenders) -> Float[Tensor, "B E H"]:
        return super().score(pairs) / _length(pairs)

    def resolution(self, pairs: Contenders, score: Float[Tensor, "B E H"]) -> Float[Tensor, "B E H"]:
        return super().resolution(pairs, score) / _length(pairs)


def _length(pairs: Contenders) -> Float[Tensor, "B E H"]:
    """‖v‖, above 0."""
    assert pairs.norm is not None, "the graph wires the state below"
    return pairs.norm.clamp(min=torch.finfo(pairs.norm.dtype).tiny ** 0.5)
