"""Layers learn apart: only fresh parameters, each from its own loss, one graph at a time, in any number of parts."""

from __future__ import annotations

from typing import Any
from weakref import WeakSet

import pytest
import torch

from composer.api import resolve_spec
from composer.errors import TrainingError
from composer.spec.recipe import Transfer
from composer.training import transfer
from composer.training.rules import check_transfer
from composer.training.transfer import TransferCourse
from composer.weights.dimensions import dimensions
from composer.weights.from_model import trunk_of
from tests.composer.training.runs import SPEC, gradients, learned, rows_of, small_llama, student_of, teacher_of, whole

HYBRID = {
    **{key: value for key, value in SPEC.items() if key != "head"},
    "heads": {"tiny": SPEC["head"], "exact": {"position": "rope", "memory": ["full"]}},
    "layers": [{"at": [0, 2], "use": "exact"}, {"at": [1], "use": "tiny"}],
}


def stage(**changes: Any) -> Transfer:
    return Transfer(**{"lr": 0.01, "steps": 1, **changes})


def course_of(source: Any, student: Any, **changes: Any) -> TransferCourse:
    return TransferCourse(student, teacher_of(source), stage(**changes))


def test_gradients_are_in_fresh_parameters_alone() -> None:
    source = small_llama()
    student, teacher = student_of(source), teacher_of(source)
    course = TransferCourse(student, teacher, stage(cross_entropy=1.0, at="output"))
    learned(course, whole(rows_of()))
    fresh = {name for name, _ in student.named_parameters() if ".composed." in name}
    found = gradients(student)
    assert found.keys() == fresh
    assert all(bool(gradient.any()) for gradient in found.values())
    assert not gradients(teacher)
    assert {name for unit in course.units for name in unit.parameters} == fresh
    assert [unit.name for unit in course.units] == ["layer 0", "layer 1"]
    assert {name for name, parameter in student.model.named_parameters(prefix="model") if parameter.requires_grad} == fresh


def test_a_layers_gradient_depends_on_no_other_layer() -> None:
    source, batch = small_llama(num_hidden_layers=3), whole(rows_of())
    student = student_of(source)
    course = course_of(source, student)
    losses, before = learned(course, batch), gradients(student)
    student.zero_grad()
    with torch.no_grad():
        for name, parameter in student.named_parameters():
            if ".layers.1." in name:
                parameter.mul_(3.0).add_(0.1)
    changed, after = learned(course, batch), gradients(student)
    for index in (0, 2):
        assert losses[f"layer {index}"] == changed[f"layer {index}"]
    assert losses["layer 1"] != changed["layer 1"]
    for name, gradient in before.items():
        assert torch.equal(gradient, after[name]) == (".layers.1." not in name)


def test_one_layers_graph_is_alive_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    class Held:
        def __init__(self, tensor: torch.Tensor) -> None:
            self.tensor = tensor

    alive: WeakSet[Held] = WeakSet()
    counts = []
    original = transfer.transfer_loss

    def watched(*arguments: Any) -> Any:
        before = len(alive)
        loss = original(*arguments)
        counts.append((before, len(alive)))
        return loss

    def pack(tensor: torch.Tensor) -> Held:
        held = Held(tensor)
        alive.add(held)
        return held

    monkeypatch.setattr(transfer, "transfer_loss", watched)
    source = small_llama(num_hidden_layers=3)
    course = course_of(source, student_of(source))
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda held: held.tensor):
        learned(course, whole(rows_of()))
    assert [before for before, _ in counts] == [0, 0, 0]
    assert all(after > 0 for _, after in counts)
    assert len(alive) == 0
    counts.clear()
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda held: held.tensor):
        course.judge(whole(rows_of()), 1.0)
    assert counts == [(0, 0)] * 3, "an evaluation keeps nothing for a gradient"


@pytest.mark.parametrize("how", ["packed", "padded"])
@pytest.mark.parametrize("parts", [2, 4])
def test_parts_add_up_to_the_whole(parts: int, how: Any) -> None:
    """Though rows have unequal numbers of tokens."""
    source = small_llama()
    student, batch = student_of(source), rows_of(how=how).batch(range(4))
    course = course_of(source, student)
    losses, once = learned(course, batch), gradients(student)
    student.zero_grad()
    assert learned(course, batch, parts) == pytest.approx(losses, rel=1e-5)
    for name, gradient in gradients(student).items():
        torch.testing.assert_close(gradient, once[name], rtol=1e-5, atol=1e-9)


def test_a_layer_that_stopped_is_left_alone_and_still_judged() -> None:
    source, batch = small_llama(), whole(rows_of())
    student = student_of(source)
    course = course_of(source, student)
    course.units[0].progress.stopped = True
    assert learned(course, batch).keys() == {"layer 1"}
    assert not any(".layers.0." in name for name in gradients(student))
    assert course.judge(batch, 1.0).keys() == {"layer 0", "layer 1"}


def test_layers_without_fresh_parameters_are_passed_over() -> None:
    source = small_llama(num_hidden_layers=3)
    student = student_of(source, HYBRID)
    course = course_of(source, student)
    assert [unit.name for unit in course.units] == ["layer 1"]
    assert learned(course, whole(rows_of())).keys() == {"layer 1"}
    everywhere = student_of(source)
    with torch.no_grad():
        for name, parameter in everywhere.model.layers[1].named_parameters():
            parameter.copy_(student.model.layers[1].get_parameter(name.replace(".head.", ".tiny.")))
    same = course_of(source, everywhere)
    assert learned(course, whole(rows_of()))["layer 1"] == learned(same, whole(rows_of()))["layer 1"], "the teacher's states"
    assert all(".layers.1.self_attn.composed." in name for name in gradients(student))


def test_a_batch_is_counted_by_its_real_tokens() -> None:
    source, rows = small_llama(), rows_of(how="padded")
    assert course_of(source, student_of(source)).count(whole(rows)) == rows.tokens < rows.ids.size


@pytest.mark.parametrize(
    ("spec", "overrides", "message"),
    [
        ("lawcat", ["head.memory.0.normalise=false"], "the answer of its `state` memory is not normalised"),
        ("delta", [], "its answer is normalised"),
        ("delta", ["head.output=null"], "the answer of its `delta` memory is not normalised"),
        ("lola", [], "which pairs its `sparse` memory keeps depends on their values"),
    ],
)
def test_heads_without_weights(spec: str, overrides: list[str], message: str) -> None:
    resolved = resolve_spec(spec, dimensions(trunk_of(small_llama())), ["recipe=null", *overrides])
    with pytest.raises(TrainingError, match=f"(?s)cross_entropy compares attention weights, and the head .* has none: .*{message}"):
        check_transfer(resolved, stage(mse=0.0, cross_entropy=1.0))
    check_transfer(resolved, stage())


def test_heads_with_weights_and_heads_with_nothing_to_train() -> None:
    size = dimensions(trunk_of(small_llama()))
    for spec in (SPEC, HYBRID | {"layers": [{"at": [0], "use": "exact"}, {"at": [1], "use": "tiny"}]}, "lolcats", "lawcat"):
        check_transfer(resolve_spec(spec, size, ["recipe=null"]), stage(cross_entropy=1.0))
    with pytest.raises(TrainingError, match=r'"softmax" have no fresh parameters.* --stage finetune'):
        check_transfer(resolve_spec("softmax", size), stage())
