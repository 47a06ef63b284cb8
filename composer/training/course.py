"""What a stage of training is, to the loop that runs it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from composer.data.packing import Batch
from composer.training.unit import Unit

Losses = dict[str, Tensor]
"""By the name of a unit: the loss, as a sum over a batch divided by the total that it was given."""


class Course(Protocol):
    """Units that learn, and what they learn."""

    @property
    def units(self) -> Sequence[Unit]:
        """What learns, each with an optimiser of its own."""
        ...

    def count(self, batch: Batch) -> int:
        """What losses are means over: the tokens of a batch that matter."""
        ...

    def learn(self, batch: Batch, total: float) -> Losses:
        """Add the gradients of a batch, whose losses are divided by ``total``. What a unit that stopped would lose is left out."""
        ...

    def judge(self, batch: Batch, total: float) -> Losses:
        """The losses alone, of all units."""
        ...
