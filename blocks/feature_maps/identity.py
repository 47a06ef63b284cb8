"""The identity: queries and keys are their own features."""

from __future__ import annotations

from typing import ClassVar, Literal

from blocks.feature_maps.base import FeatureMap
from blocks.legend import Tensor


class Identity(FeatureMap):
    """φ(x) = x. Features can be negative, so there is no mass, and the state is not normalised."""

    equation: ClassVar[str] = "φ(x) = x"
    source: ClassVar[str] = "Sun et al. 2023, arXiv:2307.08621; Yang et al. 2023, arXiv:2312.06635"
    positive: ClassVar[bool] = False
    kind: Literal["identity"] = "identity"

    def activate(self, inputs: Tensor) -> Tensor:
        return inputs
