"""A stage as the training loop sees it: units of parameters, and their losses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor, nn

from composer.data.packing import Batch
from composer.model.head import without_autocast
from composer.training.unit import Unit

Losses = dict[str, Tensor]
"""The loss of each unit, by its name: a sum over a batch, divided by the total that the loop gives."""


class Course(Protocol):
    """The units of a stage, and how their losses are computed."""

    @property
    def units(self) -> Sequence[Unit]:
        """The groups of parameters that are trained, each with an optimiser of its own."""
        ...

    def count(self, batch: Batch) -> int:
        """The number of tokens, or rows, of a batch that its losses are averaged over."""
        ...

    def learn(self, batch: Batch, total: float) -> Losses:
        """Add the gradients of a batch's losses, which are divided by ``total``. Units that have stopped are left out."""
        ...

    def judge(self, batch: Batch, total: float) -> Losses:
        """The losses of all units, without gradients."""
        ...


def add_gradients(loss: Tensor) -> None:
    """Add the gradients of a loss to those of its parameters.

    Autocast is for the forward alone. In the backward pass operations have the dtype of their forward, and what heads compute in
    float32 would be narrowed.
    """
    with without_autocast(loss.device.type):
        loss.backward()


class WholeCourse:
    """A student that runs as a whole, with one unit for all trained parameters. It is in training mode as it learns: layers can be
    checkpointed, and a host's dropout is on."""

    def __init__(self, student: nn.Module, unit: Unit) -> None:
        self.units = [unit]
        self._student, self._name = student, unit.name

    def learn(self, batch: Batch, total: float) -> Losses:
        self._student.train()
        loss = self._loss(batch, total)
        add_gradients(loss)
        return {self._name: loss.detach()}

    @torch.no_grad()
    def judge(self, batch: Batch, total: float) -> Losses:
        self._student.eval()
        return {self._name: self._loss(batch, total)}

    def _loss(self, batch: Batch, total: float) -> Tensor:
        """The loss of a batch, a sum divided by ``total``."""
        raise NotImplementedError
