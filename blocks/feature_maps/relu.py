"""ReLU, alone or of a learned map (T2R)."""

from __future__ import annotations

from typing import ClassVar, Literal

from blocks.feature_maps.base import FeatureMap
from blocks.legend import Tensor


class Relu(FeatureMap):
    """φ(x) = max(x, 0). The mass can be 0; the output of the state is then 0."""

    equation: ClassVar[str] = "φ(x) = max(x, 0)"
    source: ClassVar[str] = "Qin et al. 2022, arXiv:2202.08791"
    kind: Literal["relu"] = "relu"

    def activate(self, inputs: Tensor) -> Tensor:
        return inputs.clamp(min=0)
