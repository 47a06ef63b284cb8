"""Layers learn separately: only fresh parameters, each from its own loss, one graph at a time, in any number of parts."""

from __future__ import annotations

from typing import Any
from weakref import WeakSet

import pytest
import torch

from composer.building.in_memory import trunk_of
from composer.errors import TrainingError
from composer.model.hosts import attentions
from composer.spec.loading import resolve_spec
from composer.spec.recipe import Lora, Transfer
from composer.training import transfer
from composer.training.finetune import add_adapters
from composer.training.student import check_transfer
from composer.training.transfer import TransferCourse, layers_alike
from composer.weights.config import dimensions
from tests.composer.hosts.families import small
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


def test_only_fresh_parameters_have_gradients() -> None:
    source = small_llama()
    student, teacher = student_of(source), teacher_of(source)
    course = TransferCourse(student, teacher, stage(cross_entropy=1.0, at="output"))
    learned(course, whole(rows_of()))
    fresh = {name for name, _ in student.named_parameters() if ".composed." in name}
    student_gradients = gradients(student)
    assert student_gradients.keys() == fresh
    assert all(bool(gradient.any()) for gradient in student_gradients.values())
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


def test_only_one_layers_graph_is_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
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
        course.compute_losses(whole(rows_of()), 1.0)
    assert counts == [(0, 0)] * 3, "an evaluation keeps nothing for a gradient"


@pytest.mark.parametrize("how", ["packed", "padded"])
@pytest.mark.parametrize("parts", [2, 4])
def test_micro_batches_add_up_to_the_batch(parts: int, how: Any) -> None:
    """Rows have different numbers of tokens."""
    source = small_llama()
    student, batch = student_of(source), rows_of(how=how).batch(range(4))
    course = course_of(source, student)
    losses, once = learned(course, batch), gradients(student)
    student.zero_grad()
    assert learned(course, batch, parts) == pytest.approx(losses, rel=1e-5)
    for name, gradient in gradients(student).items():
        torch.testing.assert_close(gradient, once[name], rtol=1e-5, atol=1e-9)


def test_stopped_layers_are_not_trained_but_still_evaluated() -> None:
    source, batch = small_llama(), whole(rows_of())
    student = student_of(source)
    course = course_of(source, student)
    course.units[0].progress.stopped = True
    assert learned(course, batch).keys() == {"layer 1"}
    assert not any(".layers.0." in name for name in gradients(student))
    assert course.compute_losses(batch, 1.0).keys() == {"layer 0", "layer 1"}


def test_layers_without_fresh_parameters_are_skipped() -> None:
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
        ("lawcat", ["head.memory.0.normalise=false"], "the output of its `state` memory is not normalised"),
        ("delta", [], "its output is normalised"),
        ("delta", ["head.output=null"], "the output of its `delta` memory is not normalised"),
        ("nsa", [], "`read: gated` adds up outputs"),
        ("lola", [], "which pairs its `sparse` memory keeps depends on their values"),
    ],
)
def test_cross_entropy_for_heads_without_weights_is_refused(spec: str, overrides: list[str], message: str) -> None:
    resolved = resolve_spec(spec, dimensions(trunk_of(small_llama())), ["recipe=null", *overrides])
    with pytest.raises(TrainingError, match=f"(?s)cross_entropy compares attention weights, and the head .* has none: .*{message}"):
        check_transfer(resolved, stage(mse=0.0, cross_entropy=1.0))
    check_transfer(resolved, stage())


def test_transfer_requires_fresh_parameters() -> None:
    size = dimensions(trunk_of(small_llama()))
    for spec in (SPEC, HYBRID | {"layers": [{"at": [0], "use": "exact"}, {"at": [1], "use": "tiny"}]}, "lolcats", "lawcat"):
        check_transfer(resolve_spec(spec, size, ["recipe=null"]), stage(cross_entropy=1.0))
    with pytest.raises(TrainingError, match=r'"softmax" have no fresh parameters.* --stage finetune'):
        check_transfer(resolve_spec("softmax", size), stage())


def projections(student: Any, course: TransferCourse) -> int:
    """Return how often a step of the course calls the student's projections of queries."""
    counts = list[int]()
    handles = [
        module.register_forward_hook(lambda *_: counts.append(1))
        for name, module in student.named_modules()
        if name.endswith("q_proj")
    ]
    learned(course, whole(rows_of()))
    for handle in handles:
        handle.remove()
    return len(counts)


@pytest.mark.parametrize(
    ("spec", "how", "at"),
    [
        (SPEC, "packed", "heads"),
        (SPEC, "padded", "output"),
        ("lawcat", "packed", "output"),
        ("lawcat", "padded", "heads"),
        ("gated-deltanet", "packed", "heads"),
        ("gated-deltanet", "padded", "output"),
        ("mixed-heads", "packed", "output"),
        ("mixed-heads", "padded", "heads"),
    ],
)
def test_the_teachers_projections_serve_a_student_on_the_same_trunk(
    spec: Any, how: Any, at: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Losses and gradients are as if the student had projected itself."""
    source, batch, student_gradients = small_llama(), whole(rows_of(how=how)), list[Any]()
    for alike in (True, False):
        if not alike:
            monkeypatch.setattr(transfer, "layers_alike", lambda ours, theirs: frozenset())
        student = student_of(source, spec, "recipe=null")
        course = course_of(source, student, at=at, cross_entropy=0.0 if spec == "gated-deltanet" else 0.5)
        student_gradients.append((learned(course, batch), gradients(student), course.compute_losses(batch, 1.0)))
        assert (projections(student, course) > 0) == (not alike)
    (first, of_one, judged), (other, of_other, also) = student_gradients
    assert first == pytest.approx(other, rel=1e-12)
    assert {name: float(loss) for name, loss in judged.items()} == pytest.approx({name: float(loss) for name, loss in also.items()})
    assert of_one.keys() == of_other.keys()
    for name, gradient in of_one.items():
        torch.testing.assert_close(gradient, of_other[name], rtol=1e-12, atol=1e-14)


def _with_other_weights(student: Any) -> None:
    with torch.no_grad():
        student.model.layers[0].self_attn.k_proj.weight[0, 0] += 1e-3


def _with_an_adapter(student: Any) -> None:
    add_adapters(student, Lora(targets=("v",)), 0)


def _with_other_settings(student: Any) -> None:
    config = student.model.layers[0].self_attn.config
    config.attention_bias = not config.attention_bias


@pytest.mark.parametrize(("change", "alike"), [(_with_other_weights, {1}), (_with_an_adapter, set()), (_with_other_settings, {1})])
def test_students_on_another_trunk_compute_their_projections(change: Any, alike: set[int]) -> None:
    source = small_llama()
    student, teacher = student_of(source), teacher_of(source)
    own, others = (dict(enumerate(of for _, of in attentions(model))) for model in (student, teacher))
    assert layers_alike(own, others) == {0, 1}
    change(student)
    assert layers_alike(own, others) == alike


def test_students_with_mixers_compute_their_projections() -> None:
    source = small_llama()
    student = student_of(source, "rglru-window", "recipe=null", "head.memory.0.size=4", "head.mix_input.blocks=4")
    assert projections(student, course_of(source, student)) > 0


@pytest.mark.parametrize(
    ("family", "alone"),
    [("gpt2", True), ("phi3", True), ("qwen3", True), ("gemma2", True), ("gpt_oss", True), ("bitnet", False), ("afmoe", False)],
)
def test_hosts_of_other_families_are_trained(family: str, alone: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hosts have norms of queries and keys, scales and joint projections. Some compute a gate or a norm after the heads, and
    there the student's output is not the projection of its heads.
    """
    source, student_gradients = small(family), list[Any]()
    batch = whole(rows_of())
    for alike in (True, False):
        if not alike:
            monkeypatch.setattr(transfer, "layers_alike", lambda ours, theirs: frozenset())
        student = student_of(source)
        for at in ("heads", "output"):
            student.zero_grad()
            student_gradients.append((learned(course_of(source, student, at=at), batch), gradients(student)))
        if alike:
            assert all(attention.ends_in_projection is alone for _, attention in attentions(student))
    for (first, of_one), (other, of_other) in zip(student_gradients[:2], student_gradients[2:], strict=True):
        assert first == pytest.approx(other, rel=1e-5)
        for name, gradient in of_one.items():
            torch.testing.assert_close(gradient, of_other[name], rtol=1e-4, atol=1e-6)


def test_gradients_are_computed_without_autocast() -> None:
    """Autocast would narrow what the heads compute in float32."""
    source, seen = small_llama().float(), list[bool]()
    student = student_of(source)
    course = course_of(source, student)
    for unit in course.units:
        for parameter in unit.parameters.values():
            parameter.register_hook(lambda gradient: seen.append(torch.is_autocast_enabled("cpu")))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        learned(course, whole(rows_of()))
    assert seen
    assert not any(seen)
