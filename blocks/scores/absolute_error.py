"""How wrong a pair's weights were."""

from __future__ import annotations

from typing import ClassVar, Literal

from blocks.legend import Float, Tensor
from blocks.scores.base import WindowScore


class AbsoluteError(WindowScore):
    """The absolute error of attention."""

    equation: ClassVar[str] = "Σ_t |exp(q_t·k / √D) - φ(q_t)·φ(k)|, t in the window"
    source: ClassVar[str] = "LoLA, arXiv:2505.23666, appendix D and table 4"
    kind: Literal["absolute_error"] = "absolute_error"

    def error(self, exact: Float[Tensor, "B H t e"], product: Float[Tensor, "B H t e"]) -> Float[Tensor, "B H t e"]:
        return (exact - product).abs()
