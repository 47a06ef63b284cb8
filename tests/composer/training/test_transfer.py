"""Attention transfer computes its loss over real tokens of each document alone, as a plain Llama's numbers give it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from composer.data.packing import Batch, PackedRows, Packing
from composer.spec.recipe import Transfer
from composer.training.student import check_transfer
from composer.training.transfer import AttentionTarget, TransferCourse, attention_weights, heads_output, run_teacher
from tests.composer.training.by_hand import attention_of, documents, lolcats_weights, make_lesson, projected, softmax_weights
from tests.composer.training.runs import SPEC, gradients, learned, rows_of, small_llama, student_of, teacher_of, whole

WINDOW = 4
GROUPS = {"grouped": {}, "one key head a query head": {"num_key_value_heads": 4}, "one key head": {"num_key_value_heads": 1}}


def transfer(**changes: Any) -> Transfer:
    return Transfer(**{"lr": 0.01, "steps": 1, **changes})


def by_document(source: Any, batch: Batch) -> list[tuple[tuple[int, int, int], list[dict[str, Tensor]]]]:
    """Return each document, and the inputs and outputs of the source's layers for it alone."""
    return [(place, projected(source, batch.ids[place[0], place[1] : place[2]][None])) for place in documents(batch)]


def answered(student: Any, index: int, hidden: Tensor) -> Tensor:
    """Return the outputs ``1 T H D`` of the student's heads for one document's hidden states."""
    place = torch.arange(hidden.shape[1])[None]
    alone = Batch(place, place, place, torch.ones_like(place).bool())
    return heads_output(attention_of(student, index), make_lesson(hidden, alone), "torch")


def expected(student: Any, source: Any, batch: Batch, at: str) -> dict[str, float]:
    """Return Σ over real tokens of the mean squared error of a token's output, divided by their number."""
    losses = {f"layer {index}": 0.0 for index in range(len(source.model.layers))}
    for _, layers in by_document(source, batch):
        for index, own in enumerate(layers):
            outputs = answered(student, index, own["hidden"]).flatten(2)
            if at == "output":
                outputs = source.model.layers[index].self_attn.o_proj(outputs)
            wanted = own["heads" if at == "heads" else "attended"]
            losses[f"layer {index}"] += float((outputs - wanted).square().mean(-1).sum())
    return {name: loss / int(batch.valid.sum()) for name, loss in losses.items()}


@pytest.mark.parametrize("how", ["packed", "whole", "padded"])
@torch.no_grad()
def test_lessons_equal_the_attention_inputs_and_outputs_of_llama(how: Packing) -> None:
    source = small_llama()
    batch = whole(rows_of(how=how))
    assert how == "packed" or not bool(batch.valid.all())
    targets: list[AttentionTarget] = []
    run_teacher(teacher_of(source), batch, lambda index, attention, target: targets.append(target))
    for (row, start, end), layers in by_document(source, batch):
        for target, own in zip(targets, layers, strict=True):
            for name in ("hidden", "heads", "attended"):
                got = getattr(target, name)[row, start:end]
                torch.testing.assert_close(got.flatten(1), own[name][0], rtol=0, atol=1e-9)


@pytest.mark.parametrize(
    ("groups", "how", "at"),
    [
        ("grouped", "packed", "heads"),
        ("grouped", "padded", "output"),
        ("one key head a query head", "padded", "heads"),
        ("one key head", "packed", "output"),
    ],
)
def test_squared_error_matches_its_formula(groups: str, how: Packing, at: str) -> None:
    source = small_llama(**GROUPS[groups])
    student, batch = student_of(source), whole(rows_of(how=how))
    course = TransferCourse(student, teacher_of(source), transfer(at=at, mse=1000.0))
    with torch.no_grad():
        wanted = {name: 1000 * loss for name, loss in expected(student, source, batch, at).items()}
    assert {name: float(loss) for name, loss in course.compute_losses(batch, course.count(batch)).items()} == pytest.approx(
        wanted, rel=1e-5
    )
    assert learned(course, batch) == pytest.approx(wanted, rel=1e-5)


@pytest.mark.parametrize(
    ("groups", "length"), [("grouped", 8), ("grouped", 11), ("one key head a query head", 21), ("one key head", 19)]
)
@torch.no_grad()
def test_attention_weights_equal_the_whole_matrix(groups: str, length: int) -> None:
    source = small_llama(**GROUPS[groups])
    student, teacher = student_of(source), teacher_of(source)
    batch = whole(rows_of(length, lengths=(length,)))
    own = projected(source, batch.ids)
    for index, layer in enumerate(source.model.layers):
        hidden = own[index]["hidden"]
        actual = attention_weights(attention_of(teacher, index), make_lesson(hidden, batch), "torch")
        wanted = softmax_weights(layer.self_attn, hidden[0], 8)
        torch.testing.assert_close(actual[0].transpose(0, 1), wanted.float(), rtol=0, atol=1e-6)
        actual = attention_weights(attention_of(student, index), make_lesson(hidden, batch), "torch")
        wanted = lolcats_weights(attention_of(student, index), hidden[0], WINDOW)
        torch.testing.assert_close(actual[0].transpose(0, 1), wanted.float(), rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("spec", "overrides"),
    [
        ("lolcats", ["head.memory.0.size=4"]),
        ("lolcats-workshop", ["head.memory.0.size=4"]),
        ("lolcats-terraced", ["head.memory.0.size=4"]),
        ("lolcats-local-rope", ["head.memory.0.size=4"]),
        ("rglru-window", ["head.memory.0.size=4", "head.mix_input.blocks=4"]),
        ("latte-macchiato", ["head.memory.0.size=4", "head.memory.1.size=8", "head.mix_input.blocks=4"]),
        ("latte-bidirectional", ["head.memory.0.size=8"]),
        ("mixed-heads", []),
        ("lawcat", []),
        ("hedgehog", []),
        ("t2r", []),
    ],
)
@torch.no_grad()
def test_outputs_equal_weights_times_values(spec: str, overrides: list[str]) -> None:
    """This holds for all heads that the rules allow. Otherwise there would be no weights to compare."""
    student = student_of(small_llama(), spec, "recipe=null", *overrides)
    check_transfer(student.config.read_spec(), transfer(mse=0.0, cross_entropy=1.0))
    batch, attention = whole(rows_of(19)), attention_of(student, 1)
    hidden = torch.randn(*batch.ids.shape, 32, dtype=torch.float64)
    weights = attention_weights(attention, make_lesson(hidden, batch), "torch")
    value = attention.get_submodule("v_proj")(hidden).unflatten(2, (-1, 8)).repeat_interleave(2, dim=2).float()
    answer = heads_output(attention, make_lesson(hidden, batch), "torch").float()
    output = torch.einsum("bths,bshd->bthd", weights, value)
    torch.testing.assert_close(output[batch.valid], answer[batch.valid], rtol=0, atol=2e-6)


@pytest.mark.parametrize("how", ["packed", "padded"])
def test_cross_entropy_of_the_weights_matches_lolcats_equation_7(how: Packing) -> None:
    """LoLCATs (workshop), eq. 7, from whole matrices, gradients included."""
    source = small_llama()
    student, batch = student_of(source), whole(rows_of(14, how))
    course = TransferCourse(student, teacher_of(source), transfer(mse=0.0, cross_entropy=2.0))
    losses = learned(course, batch)
    student_gradients = gradients(student)
    student.zero_grad()
    for index in range(2):
        loss = torch.zeros((), dtype=torch.float64)
        for _, layers in by_document(source, batch):
            hidden = layers[index]["hidden"][0]
            wanted = softmax_weights(source.model.layers[index].self_attn, hidden, 8).detach()
            student_weights = lolcats_weights(attention_of(student, index), hidden, WINDOW)
            seen = wanted > 0
            loss = loss - (wanted[seen] * student_weights[seen].log()).sum() / len(wanted)
        loss = 2 * loss / int(batch.valid.sum())
        loss.backward()
        assert losses[f"layer {index}"] == pytest.approx(loss.item(), rel=1e-5)
    for name, gradient in gradients(student).items():
        torch.testing.assert_close(student_gradients[name], gradient, rtol=1e-4, atol=1e-7)


def test_both_losses_are_added() -> None:
    source, batch = small_llama(), whole(rows_of())
    student, teacher = student_of(source), teacher_of(source)
    first, other, both = (
        learned(TransferCourse(student, teacher, transfer(mse=mse, cross_entropy=entropy)), batch)
        for mse, entropy in ((3.0, 0.0), (0.0, 0.5), (3.0, 0.5))
    )
    assert both == pytest.approx({name: first[name] + other[name] for name in first}, rel=1e-6)


@pytest.mark.parametrize("spec", [SPEC, "lawcat", "gla", "gated-delta"])
def test_padding_changes_nothing(spec: Any) -> None:
    source, rows = small_llama(), rows_of(how="padded")
    assert not rows.valid.all()
    filled = PackedRows((rows.ids + 7 * ~rows.valid).astype("int32"), rows.labels, rows.position, rows.valid)
    student, teacher = student_of(source, spec, "recipe=null"), teacher_of(source)
    course, seen = TransferCourse(student, teacher, transfer()), []
    for each in (rows, filled):
        student.zero_grad()
        seen.append((learned(course, whole(each)), gradients(student)))
    (first, of_one), (other, of_other) = seen
    assert len(first) == 2
    assert min(first.values()) > 0
    assert first == pytest.approx(other, rel=1e-12)
    for name, gradient in of_one.items():
        torch.testing.assert_close(gradient, of_other[name], rtol=0, atol=1e-12)


def test_students_equal_to_their_teacher_have_no_loss() -> None:
    """A window for all tokens leaves nothing to the state."""
    source, memory = small_llama(), [{"kind": "window", "size": 64, "weight": "learned"}, "state"]
    student = student_of(source, {**SPEC, "head": {**SPEC["head"], "memory": memory}})
    course = TransferCourse(student, teacher_of(source), transfer())
    assert max(learned(course, whole(rows_of())).values()) < 1e-12
