"""What the memories share whose pairs are written at a rate, under keys of length 1."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, ClassVar

from pydantic import Field

from blocks.feature_maps.base import UnitLength
from blocks.flow import Features, Pairs
from blocks.legend import Float, Tensor
from blocks.memories.recurrent import Recurrent
from blocks.rates import Learned, Rate, RateConfig


class Rated(Recurrent):
    """A state that writes each pair at the rate of the pair's own token. The output is a raw numerator: there is no mass."""

    incidental: ClassVar[frozenset[str]] = Recurrent.incidental | {"rate"}
    rate: RateConfig = Learned()
    """The write strength β of each pair."""
    epsilon: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Added to the squared length that features are divided by. Published code uses 1e-6."""

    def has_mass(self) -> bool:
        return False

    @property
    def features_as(self) -> UnitLength:
        return UnitLength(self.epsilon)

    @property
    def _travels_as(self) -> str:
        return f"{self.called}_rate"

    def rates(self) -> Mapping[str, Rate]:
        return {self._travels_as: self.rate}

    def features_of(self, key: Float[Tensor, "B E N F"], pairs: Pairs) -> Features:
        """Return the mapped pairs, with the write strength of each."""
        return replace(super().features_of(key, pairs), rate=pairs.numbers[self._travels_as])
