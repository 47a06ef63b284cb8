"""Hedgehog: softmax over a learned map's own coordinates."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from blocks.feature_maps.base import FeatureMap
from blocks.legend import Tensor


class Hedgehog(FeatureMap):
    """φ(x) = softmax(xW) ‖ softmax(-xW), each value at least ``floor``, as in LoLCATs' code."""

    equation: ClassVar[str] = "φ(x) = softmax(xW) ‖ softmax(-xW)"
    source: ClassVar[str] = "Zhang et al. 2024, arXiv:2402.04347, section 4.2; LoLCATs, arXiv:2410.10254"
    incidental: ClassVar[frozenset[str]] = FeatureMap.incidental | {"floor"}
    even: ClassVar[bool] = True
    kind: Literal["hedgehog"] = "hedgehog"
    linear: bool = True
    two_sided: bool = True
    floor: Annotated[float, Field(ge=1e-18, lt=1)] = 1e-12
    """Smallest feature: queries and keys without a common feature still have a mass above 0."""

    def activate(self, inputs: Tensor) -> Tensor:
        shares = inputs.softmax(dim=-1)
        # A softmax's gradient needs what it gave.
        return shares.clamp(min=self.floor) if shares.requires_grad else shares.clamp_(min=self.floor)
