"""Stage 1, attention transfer: each layer's fresh parameters learn what the teacher's attention answers to the same hidden states.

The layers do not depend on each other. The teacher walks through its layers, and as soon as one of them has answered, the
student's layer is compared with it and its gradients are taken, so that no more than one layer's graph is alive.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from blocks.flow import Tokens
from composer.data.packing import Batch
from composer.model.attention import ComposedAttention
from composer.model.modeling import ComposedDecoderLayer, ComposedForCausalLM, ComposedModel
from composer.spec.recipe import Transfer
from composer.training.course import Losses
from composer.training.processes import within
from composer.training.unit import Unit


@dataclass(frozen=True)
class Lesson:
    """One layer on one batch: the hidden states B T C that its attention is given, the tokens, and what the teacher answers."""

    hidden: Tensor
    tokens: Tokens
    heads: Tensor
    """B T H D, before the output projection."""
    attended: Tensor
    """B T C, after it."""


class TransferCourse:
    """All layers of a student, in one pass of the teacher over each batch."""

    def __init__(self, student: ComposedForCausalLM, teacher: ComposedForCausalLM, stage: Transfer) -> None:
        self._layers = dict(layer_units(student.model, stage))
        self.units = list(self._layers.values())
        self._student, self._teacher, self._stage = student.model, teacher, stage

    def count(self, batch: Batch) -> int:
        return int(batch.valid.sum())

    def learn(self, batch: Batch, total: float) -> Losses:
        losses: Losses = {}
        for index, attention, lesson in self._lessons(batch):
            if not self._layers[index].progress.stopped:
                loss = self._loss(index, attention, lesson, total)
                loss.backward()
                losses[self._layers[index].name] = loss.detach()
        return losses

    @torch.no_grad()
    def judge(self, batch: Batch, total: float) -> Losses:
        return {
            self._layers[index].name: self._loss(index, attention, lesson, total)
            for index, attention, lesson in self._lessons(batch)
        }

    def _lessons(self, batch: Batch) -> Iterator[tuple[int, ComposedAttention, Lesson]]:
        for index, lesson in enumerate(lessons(self._teacher, batch)):
            if index in self._layers:
                yield index, attention_of(self._student, index), lesson

    def _loss(self, index: int, attention: ComposedAttention, lesson: Lesson, total: float) -> Tensor:
        teacher = attention_of(self._teacher.model, index)
        return within(attention, transfer_loss, teacher, lesson, self._stage, total, self._student.backend)


def computing_alone(model: ComposedModel) -> Iterator[nn.Module]:
    """What computes by itself as attention is transferred: the attention of each layer, and the rest of it."""
    for index, layer in enumerate(model.layers):
        yield attention_of(model, index)
        yield layer


def layer_units(model: ComposedModel, stage: Transfer) -> Iterator[tuple[int, Unit]]:
    """A unit for each layer that has fresh parameters; all others are frozen."""
    model.requires_grad_(False)
    for index in range(len(model.layers)):
        unit = layer_unit(index, attention_of(model, index), stage)
        if unit is not None:
            yield index, unit


def layer_unit(index: int, attention: ComposedAttention, stage: Transfer) -> Unit | None:
    """The fresh parameters of one layer; None where it has none."""
    prefix = f"model.layers.{index}.self_attn.composed."
    fresh = {prefix + name: parameter for name, parameter in attention.composed.named_parameters()}
    for parameter in fresh.values():
        parameter.requires_grad_()
    return Unit(f"layer {index}", stage, [(stage.lr, fresh)]) if fresh else None


def attention_of(model: ComposedModel, index: int) -> ComposedAttention:
    attention = model.layers[index].self_attn
    assert isinstance(attention, ComposedAttention)
    return attention


def tokens_of(batch: Batch) -> Tokens:
    """Where the tokens of a batch stand: padding is at the end, as the heads expect it."""
    starts = (batch.position == 0) & batch.valid
    starts[:, 0] = False
    segment = starts.cumsum(1) if bool(starts.any()) else None
    return Tokens(batch.position, segment, None if bool(batch.valid.all()) else batch.valid)


@torch.no_grad()
def lessons(teacher: ComposedForCausalLM, batch: Batch) -> Iterator[Lesson]:
    """What the teacher gives its layers, and what they answer, one after the other."""
    tokens = tokens_of(batch)
    hidden, last = within(teacher, _embedded, batch.ids, tokens), len(teacher.model.layers) - 1
    for index, layer in enumerate(teacher.model.layers):
        lesson, hidden = within(layer, _taught, hidden, tokens, teacher.model.backend, index == last)
        yield lesson


def _embedded(teacher: ComposedForCausalLM, ids: Tensor, tokens: Tokens) -> Tensor:
    return teacher.model.before(teacher.model.embed_tokens(ids), tokens)


def _taught(teacher: ComposedDecoderLayer, hidden: Tensor, tokens: Tokens, backend: str, last: bool) -> tuple[Lesson, Tensor]:
    """What the attention answers, and what the next layer is handed, if there is one."""
    lesson = lesson_of(teacher, hidden, tokens, backend)
    return lesson, hidden if last else teacher.after(hidden, lesson.attended)


def lesson_of(teacher: ComposedDecoderLayer, hidden: Tensor, tokens: Tokens, backend: str) -> Lesson:
    """What one layer of the teacher answers to the hidden states that it is handed."""
    inputs = teacher.input_layernorm(hidden)
    return Lesson(inputs, tokens, *within(teacher.self_attn, _answers, inputs, tokens, backend))


def _answers(attention: ComposedAttention, hidden: Tensor, tokens: Tokens, backend: str) -> tuple[Tensor, Tensor]:
    """Before the output projection, and after it."""
    heads, _ = attention.heads(hidden, tokens, {}, backend)
    return heads, attention.o_proj(heads.flatten(2))


def transfer_loss(
    attention: ComposedAttention, teacher: ComposedAttention, lesson: Lesson, stage: Transfer, total: float, backend: str
) -> Tensor:
    """The weighed loss of one layer, summed over valid tokens and divided by ``total``."""
    loss = lesson.hidden.new_zeros((), dtype=torch.float32)
    if stage.mse:
        found, _ = attention.heads(lesson.hidden, lesson.tokens, {}, backend)
        wanted = lesson.heads
        if stage.at == "output":
            found, wanted = attention.o_proj(found.flatten(2)), lesson.attended
        error = (found.float() - wanted.float()).square().flatten(2).mean(-1)
        loss = loss + stage.mse * _over_tokens(error, lesson.tokens) / total
    if stage.cross_entropy:
        entropy = _cross_entropy(attention, teacher, lesson, backend)
        loss = loss + stage.cross_entropy * _over_tokens(entropy, lesson.tokens) / total
    return loss


def _cross_entropy(attention: ComposedAttention, teacher: ComposedAttention, lesson: Lesson, backend: str) -> Tensor:
    """-Σ_s a_ts log â_ts of each token, a mean over heads: LoLCATs (workshop), eq. 7. B T."""
    with torch.no_grad():
        wanted = within(teacher, attention_weights, lesson.hidden, lesson.tokens, backend)
    found = attention_weights(attention, lesson.hidden, lesson.tokens, backend)
    return -(wanted * found.clamp(min=torch.finfo(found.dtype).tiny).log()).sum(-1).mean(-1)


def attention_weights(attention: ComposedAttention, hidden: Tensor, tokens: Tokens, backend: str) -> Tensor:
    """The weight of every token s in the answer to every token t, B T H T.

    Answers are linear in the values, so those to unit vectors are the weights, as many of them at a time as a value has numbers.
    """
    batch, length = hidden.shape[:2]
    width, heads = attention.head_dim, attention.k_proj.out_features // attention.head_dim
    unit, found = torch.eye(length, dtype=hidden.dtype, device=hidden.device), []
    for start in range(0, length, width):
        columns = nn.functional.pad(unit[:, start : start + width], (0, max(0, start + width - length)))
        value = columns[None, :, None].expand(batch, length, heads, width)
        answers, _ = attention.heads(hidden, tokens, {}, backend, value)
        found.append(answers[..., : length - start].float())
    return torch.cat(found, dim=-1)


def _over_tokens(losses: Tensor, tokens: Tokens) -> Tensor:
    return losses.sum() if tokens.valid is None else losses.masked_fill(~tokens.valid, 0.0).sum()
