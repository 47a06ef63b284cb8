"""Compares a student with its teacher before fine-tuning: perplexity, attention MSE and KL, as LoLCATs' (workshop) table 1."""

from __future__ import annotations

import os
from itertools import islice

import torch
from torch import Tensor

from blocks.part import Closed
from composer.data.packing import Batch, PackedRows
from composer.errors import TrainingError
from composer.model.attention import ComposedAttention
from composer.model.hosts import attentions_by_layer
from composer.model.modeling import ComposedForCausalLM
from composer.spec.overrides import Overrides
from composer.spec.recipe import Recipe
from composer.training.finetune import loss_of
from composer.training.rows import rows_of
from composer.training.run import TrainingOptions, load_student
from composer.training.student import read_student, without_weights
from composer.training.teacher import open_teacher
from composer.training.transfer import AttentionTarget, attention_weights, heads_output, run_teacher

ROWS = 32
"""Held-out rows that attention is compared on: each costs T × T numbers a head."""


class AttentionLikeness(Closed):
    """Means over the tokens and heads of one layer of the student, on the teacher's hidden states."""

    mse: float
    """The mean squared error of the heads' outputs, over their elements."""
    divergence: float | None
    """KL(teacher ‖ student) of the attention weights, in nats; None where the outputs of either are no weighed means of values. A
    weight of 0 counts as float32's smallest normal number, so that it costs no more than 87."""


class Likeness(Closed):
    """loss, teacher_loss: next-token losses on held-out rows, in nats, averaged as in the recipe; ``loss`` is None for a student
    that looks both ways, and so sees the next token. layers: those with attention, in order."""

    loss: float | None
    teacher_loss: float
    layers: tuple[AttentionLikeness, ...]

    @property
    def mse(self) -> float:
        return sum(layer.mse for layer in self.layers) / len(self.layers)

    @property
    def divergence(self) -> float | None:
        divergences = [layer.divergence for layer in self.layers if layer.divergence is not None]
        return sum(divergences) / len(divergences) if len(divergences) == len(self.layers) else None


def likeness_of(
    model: str | os.PathLike[str], options: TrainingOptions, *, overrides: Overrides = (), recipe: Recipe | None = None
) -> Likeness:
    """Compares the student of a folder with its teacher, on the rows that training would hold out. Raises as ``distill`` does."""
    described = read_student(model, overrides, recipe)
    held_out = rows_of(described, options)[1]
    if held_out is None:
        raise TrainingError("Nothing is held out, so there is nothing to compare on: set --held-out, or a --share above 0.")
    teacher = open_teacher(described.record, options.teacher).load(options.device, options.backend)
    student = load_student(described, options).eval()
    average = "tokens" if described.recipe.finetune is None else described.recipe.finetune.average
    causal = described.record.resolved.direction == "causal"
    return Likeness(
        loss=loss_of(student, held_out, 1, average) if causal else None,
        teacher_loss=loss_of(teacher, held_out, 1, average),
        layers=attention_likeness(student, teacher, held_out),
    )


@torch.no_grad()
def attention_likeness(
    student: ComposedForCausalLM, teacher: ComposedForCausalLM, rows: PackedRows
) -> tuple[AttentionLikeness, ...]:
    """Return the likeness of each layer that has attention, on the first ``ROWS`` rows."""
    student_layers, backend = attentions_by_layer(student), student.base.backend
    errors, divergences, tokens = dict.fromkeys(student_layers, 0.0), dict.fromkeys(student_layers, 0.0), 0
    comparable = {index: has_weights(student, index) and has_weights(teacher, index) for index in student_layers}
    for part in islice(rows.in_order(1), ROWS):
        batch = part.to(student.device)
        tokens += int(batch.valid.sum())

        def compare(index: int, theirs: ComposedAttention, target: AttentionTarget, batch: Batch = batch) -> None:
            heads = heads_output(student_layers[index], target, backend)
            errors[index] += _total((heads - target.heads).float().square().flatten(2).mean(-1), batch)
            if comparable[index]:
                wanted = attention_weights(theirs, target, teacher.base.backend)
                weights = attention_weights(student_layers[index], target, backend)
                tiny = torch.finfo(weights.dtype).tiny
                ratios = wanted.clamp(min=tiny).log() - weights.clamp(min=tiny).log()
                divergences[index] += _total((wanted * ratios).sum(-1).mean(-1), batch)

        run_teacher(teacher, batch, compare)
    return tuple(
        AttentionLikeness(mse=errors[index] / tokens, divergence=divergences[index] / tokens if comparable[index] else None)
        for index in student_layers
    )


def has_weights(model: ComposedForCausalLM, index: int) -> bool:
    """Whether the outputs of a layer's heads are weighed means of the values, with the same weights for all values."""
    resolved = model.config.read_spec()
    return all(without_weights(resolved.heads[group.head]) is None for group in resolved.layers[index])


def _total(of_tokens: Tensor, batch: Batch) -> float:
    """Return the sum over real tokens, of B T."""
    return float(of_tokens[batch.valid].sum())
