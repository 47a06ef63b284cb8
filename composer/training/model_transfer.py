"""Stage 1 from end to end: all fresh parameters together learn the teacher's last hidden states.

In other transfers, each layer runs on the teacher's hidden states and learns by itself. Here the student runs as a whole, on its
own hidden states: a layer may differ from the teacher's, where later layers make up for the difference.
"""

from __future__ import annotations

import torch
from torch import Tensor

from composer.data.packing import Batch
from composer.model.modeling import ComposedForCausalLM
from composer.spec.recipe import Transfer
from composer.training.course import WholeCourse
from composer.training.finetune import MODEL
from composer.training.processes import within
from composer.training.unit import Unit
from converters.canonical import is_composed


class ModelTransferCourse(WholeCourse):
    """The fresh parameters of all layers are one unit; everything else is frozen."""

    def __init__(self, student: ComposedForCausalLM, teacher: ComposedForCausalLM, stage: Transfer) -> None:
        super().__init__(student, _unit(student, stage))
        self._model, self._teacher, self._stage = student, teacher, stage

    def count(self, batch: Batch) -> int:
        return int(batch.valid.sum())

    def _loss(self, batch: Batch, total: float) -> Tensor:
        """mse · Σ over real tokens of |h - h'|² / C, divided by ``total``."""
        with torch.no_grad():
            wanted = within(self._teacher, last_hidden, batch)
        error = (within(self._model, last_hidden, batch).float() - wanted.float()).square().mean(-1)
        return self._stage.mse * error.masked_fill(~batch.valid, 0.0).sum() / total


def last_hidden(model: ComposedForCausalLM, batch: Batch) -> Tensor:
    """The hidden states behind a model's last norm, which logits are computed from, B T C."""
    return model.base(**batch.inputs(mask=True), use_cache=False).last_hidden_state


def _unit(student: ComposedForCausalLM, stage: Transfer) -> Unit:
    student.requires_grad_(False)
    fresh = {name: parameter for name, parameter in student.named_parameters() if is_composed(name)}
    for parameter in fresh.values():
        parameter.requires_grad_()
    return Unit(MODEL, stage, [(stage.lr, fresh)])
