"""How far a pair's weights were too large."""

from __future__ import annotations

import math
from typing import ClassVar, Literal

from blocks.legend import Float, Tensor
from blocks.scores.base import LARGEST, WindowScore


class Overestimate(WindowScore):
    """The ratio of the feature maps' weights to the exact ones."""

    equation: ClassVar[str] = "Σ_t φ(q_t)·φ(k) / exp(q_t·k / √D), t in the window"
    source: ClassVar[str] = "LoLA, arXiv:2505.23666, eq. 20 and table 4"
    kind: Literal["overestimate"] = "overestimate"

    def error(self, exact: Float[Tensor, "B H t e"], product: Float[Tensor, "B H t e"]) -> Float[Tensor, "B H t e"]:
        return product / exact.clamp(min=math.exp(-LARGEST))
