"""1 + ELU, the feature map of the first linear attention."""

from __future__ import annotations

from typing import ClassVar, Literal

from blocks.feature_maps.base import FeatureMap
from blocks.legend import Tensor, torch


class OnePlusElu(FeatureMap):
    """φ(x) = 1 + ELU(x). Below 0 this is exp(x), and it is computed as exp(x), since 1 + (exp(x) - 1) loses small values to
    rounding."""

    equation: ClassVar[str] = "φ(x) = x + 1 where x > 0, exp(x) elsewhere"
    source: ClassVar[str] = "Katharopoulos et al. 2020, arXiv:2006.16236, eq. 7"
    kind: Literal["elu"] = "elu"

    def activate(self, inputs: Tensor) -> Tensor:
        return torch.where(inputs > 0, inputs + 1, inputs.clamp(max=0).exp())
