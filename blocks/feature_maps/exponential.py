"""exp: the unnormalised feature map of Hedgehog and of LoLCATs' workshop paper."""

from __future__ import annotations

from typing import ClassVar, Literal

from blocks.feature_maps.base import FeatureMap
from blocks.legend import Tensor


class Exponential(FeatureMap):
    """φ(x) = exp(u). The fast forms compute with u and a running maximum, so that large u do not overflow."""

    equation: ClassVar[str] = "φ(x) = exp(xW) ‖ exp(-xW)"
    source: ClassVar[str] = "Zhang et al. 2024, arXiv:2402.04347, eq. 6; LoLCATs (workshop), eq. 6"
    exponential: ClassVar[bool] = True
    kind: Literal["exp"] = "exp"
    linear: bool = True
    two_sided: bool = True

    def activate(self, inputs: Tensor) -> Tensor:
        return inputs.exp()

    def log_activate(self, inputs: Tensor) -> Tensor:
        return inputs
