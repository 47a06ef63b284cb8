"""The age of a pair."""

from __future__ import annotations

from typing import ClassVar, Literal

from blocks.legend import Float, Tensor
from blocks.scores.base import Contenders, Score


class Recent(Score):
    """Keeps the latest pairs, so that the cache extends the window."""

    equation: ClassVar[str] = "t"
    source: ClassVar[str] = "LoLA, arXiv:2505.23666, table 4: a larger window"
    by_position: ClassVar[bool] = True
    kind: Literal["recent"] = "recent"

    def score(self, pairs: Contenders) -> Float[Tensor, "B E H"]:
        return pairs.position.double()
