"""How wrong a pair's weights were, squared."""

from __future__ import annotations

from typing import ClassVar, Literal

from blocks.legend import Float, Tensor
from blocks.scores.base import WindowScore


class SquaredError(WindowScore):
    """The squared error of attention."""

    equation: ClassVar[str] = "Σ_t (exp(q_t·k / √D) - φ(q_t)·φ(k))², t in the window"
    source: ClassVar[str] = "LoLA, arXiv:2505.23666, eq. 19 and table 4"
    kind: Literal["squared_error"] = "squared_error"

    def error(self, exact: Float[Tensor, "B H t e"], product: Float[Tensor, "B H t e"]) -> Float[Tensor, "B H t e"]:
        return (exact - product).square()
