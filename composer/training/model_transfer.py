"""Stage 1 from end to end: all fresh parameters together learn the teacher's last hidden states.

Other transfers hand each layer the teacher's hidden states, so that layers learn apart. Here the student runs whole, on hidden
states of its own: a layer may differ from the teacher's, where the layers behind it make up for that.
"""

from __future__ import annotations

import torch
from torch import Tensor

from composer.data.packing import Batch
from composer.model.modeling import ComposedForCausalLM
from composer.spec.recipe import Transfer
from composer.training.course import Losses
from composer.training.finetune import MODEL
from composer.training.processes import within
from composer.training.unit import Unit


class ModelTransferCourse:
    """The fresh parameters of all layers are one unit; everything else is frozen.

    While it learns, the student is in training mode, as in stage 2: its layers can be checkpointed, and a host's dropout drops.
    """

    def __init__(self, student: ComposedForCausalLM, teacher: ComposedForCausalLM, stage: Transfer) -> None:
        self.units = [_unit(student, stage)]
        self._student, self._teacher, self._stage = student, teacher, stage

    def count(self, batch: Batch) -> int:
        return int(batch.valid.sum())

    def learn(self, batch: Batch, total: float) -> Losses:
        self._student.train()
        loss = self._loss(batch, total)
        loss.backward()
        return {MODEL: loss.detach()}

    @torch.no_grad()
    def judge(self, batch: Batch, total: float) -> Losses:
        self._student.eval()
        return {MODEL: self._loss(batch, total)}

    def _loss(self, batch: Batch, total: float) -> Tensor:
        """mse · Σ over real tokens of |h - h'|² / C, divided by ``total``."""
        with torch.no_grad():
            wanted = within(self._teacher, last_hidden, batch)
        error = (within(self._student, last_hidden, batch).float() - wanted.float()).square().mean(-1)
        return self._stage.mse * error.masked_fill(~batch.valid, 0.0).sum() / total


def last_hidden(model: ComposedForCausalLM, batch: Batch) -> Tensor:
    """The hidden states behind a model's last norm, and before whatever it gives logits by, B T C."""
    return model.base(**batch.inputs(mask=True), use_cache=False).last_hidden_state


def _unit(student: ComposedForCausalLM, stage: Transfer) -> Unit:
    student.requires_grad_(False)
    fresh = {name: parameter for name, parameter in student.named_parameters() if ".composed." in name}
    for parameter in fresh.values():
        parameter.requires_grad_()
    return Unit(MODEL, stage, [(stage.lr, fresh)])
