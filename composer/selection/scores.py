"""Scores of layers: how a model's output changes when one of its layers has the attention of another model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager

import torch
from torch import Tensor

from composer.data.packing import Batch, PackedRows
from composer.model.attention import ComposedAttention
from composer.model.hosts import attentions_by_layer
from composer.model.modeling import ComposedForCausalLM
from composer.selection.report import LayerScore
from composer.training.finetune import divergence
from composer.training.transfer import AttentionTarget, heads_output, output_projection_name, run_teacher


@torch.no_grad()
def score_layers(
    student: ComposedForCausalLM, teacher: ComposedForCausalLM, rows: PackedRows, advance: Callable[[], None] = lambda: None
) -> tuple[float, tuple[LayerScore, ...]]:
    """KL(teacher ‖ student) in nats a token, and the scores of each layer; passes over a row: 3 + twice the layers. advance: called
    after each layer of each row."""
    student_layers, taught = attentions_by_layer(student), attentions_by_layer(teacher)
    apart, tokens = 0.0, 0
    restored, swapped, wrong, whole = (dict.fromkeys(student_layers, 0.0) for _ in range(4))
    for part in rows.in_order(1):
        batch = part.to(student.device)
        tokens += int(batch.valid.sum())

        def compare(index: int, theirs: ComposedAttention, target: AttentionTarget, batch: Batch = batch) -> None:
            heads = heads_output(student_layers[index], target, student.base.backend)
            wrong[index] += _squares(heads - target.heads, batch)
            whole[index] += _squares(target.heads, batch)

        run_teacher(teacher, batch, compare)
        wanted = _logits(teacher, batch)
        apart += _apart(student, batch, wanted)
        for index in student_layers:
            with in_place_of(student_layers[index], taught[index]):
                restored[index] += _apart(student, batch, wanted)
            with in_place_of(taught[index], student_layers[index]):
                swapped[index] += _apart(teacher, batch, wanted)
            advance()
    scores = tuple(
        LayerScore(
            layer=index,
            restored=(apart - restored[index]) / tokens,
            swapped=swapped[index] / tokens,
            error=wrong[index] / max(whole[index], torch.finfo(torch.float32).tiny),
        )
        for index in student_layers
    )
    return apart / tokens, scores


@torch.no_grad()
def divergence_with(
    student: ComposedForCausalLM, teacher: ComposedForCausalLM, rows: PackedRows, keep: Iterable[int]
) -> tuple[float, int]:
    """KL(teacher ‖ student) in nats a token with the teacher's attention in these layers of the student, and the tokens."""
    student_layers, theirs = attentions_by_layer(student), attentions_by_layer(teacher)
    apart, tokens = 0.0, 0
    with ExitStack() as kept:
        for index in keep:
            kept.enter_context(in_place_of(student_layers[index], theirs[index]))
        for part in rows.in_order(1):
            batch = part.to(student.device)
            tokens += int(batch.valid.sum())
            apart += _apart(student, batch, _logits(teacher, batch))
    return apart / tokens, tokens


@contextmanager
def in_place_of(attention: ComposedAttention, other: ComposedAttention) -> Iterator[None]:
    """For the block, a layer has the heads of another model's attention, with the output projection that was solved for them."""
    own = {name: getattr(attention, name) for name in ("composed", output_projection_name(attention)) if name is not None}
    for name in own:
        setattr(attention, name, getattr(other, name))
    try:
        yield
    finally:
        for name, module in own.items():
            setattr(attention, name, module)


def _apart(model: ComposedForCausalLM, batch: Batch, wanted: Tensor) -> float:
    """Return KL(target ‖ model) of logits N V, summed over the real tokens."""
    return float(divergence(_logits(model, batch), wanted, 1.0).sum())


def _logits(model: ComposedForCausalLM, batch: Batch) -> Tensor:
    """Return the logits of real tokens, N V, in float32."""
    return model(**batch.inputs(mask=True), use_cache=False).logits[batch.valid].float()


def _squares(heads: Tensor, batch: Batch) -> float:
    return float(heads[batch.valid].float().square().sum())
