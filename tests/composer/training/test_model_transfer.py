"""End-to-end transfer matches the last hidden states in all layers at once, and stops, splits and continues like other stages."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from composer.data.packing import Batch, Packing
from composer.errors import SpecError, TrainingError
from composer.spec.loading import load_spec
from composer.spec.recipe import Transfer
from composer.training import checkpoint
from composer.training.student import check_transfer
from composer.training.transfer import ModelTransferCourse, last_hidden
from tests.composer.hosts.families import small
from tests.composer.training.by_hand import attention_of, documents, lolcats_weights, projections
from tests.composer.training.processes import ending, forked, killed_at, several
from tests.composer.training.runs import (
    VOCABULARY,
    gradients,
    make_student,
    make_teacher,
    rows_of,
    run,
    small_llama,
    student_of,
    teacher_of,
)
from tests.composer.training.runs import whole as everything
from tests.composer.training.stages import log
from tests.composer.training.test_transfer_course import HYBRID
from tests.composer.weights.students import weights

WINDOW = 4
AT_THE_END = "recipe.transfer.at=model"


def transfer(**changes: Any) -> Transfer:
    return Transfer(**{"lr": 0.01, "steps": 1, "at": "model", **changes})


def course_of(source: Any, student: Any, **changes: Any) -> ModelTransferCourse:
    return ModelTransferCourse(student, teacher_of(source), transfer(**changes))


def learned(course: ModelTransferCourse, batch: Batch, parts: int = 1) -> float:
    """Return the loss of a batch in this many parts, and the summed gradients."""
    total = course.count(batch)
    return sum(float(course.compute_gradients(part, total)["model"]) for part in batch.split(parts))


def last_by_hand(source: Any, student: Any, ids: Tensor) -> Tensor:
    """Return a Llama's last hidden states T C of one document with the student's whole attention matrices."""
    hidden = source.model.embed_tokens(ids)
    for index, layer in enumerate(source.model.layers):
        normed = layer.input_layernorm(hidden)
        seen = lolcats_weights(attention_of(student, index), normed, WINDOW)
        _, _, value = projections(layer.self_attn, normed, 8)
        hidden = hidden + layer.self_attn.o_proj(torch.einsum("hts,shd->thd", seen, value).flatten(1))
        hidden = hidden + layer.mlp(layer.post_attention_layernorm(hidden))
    return source.model.norm(hidden)


@pytest.mark.parametrize("how", ["packed", "padded"])
def test_loss_and_gradients_match_the_definition(how: Packing) -> None:
    """The loss is mse · mean over real tokens and channels of (h - h')², with autograd's gradients, each document alone."""
    source = small_llama()
    student, batch = student_of(source), everything(rows_of(14, how))
    assert how == "packed" or not bool(batch.valid.all())
    course = course_of(source, student, mse=1000.0)
    loss = learned(course, batch)
    student_gradients = gradients(student)
    assert float(course.compute_losses(batch, course.count(batch))["model"]) == pytest.approx(loss, rel=1e-9)
    student.zero_grad()
    squares = torch.zeros((), dtype=torch.float64)
    for row, start, end in documents(batch):
        ids = batch.ids[row, start:end]
        wanted = source.model(ids[None], use_cache=False).last_hidden_state[0].detach()
        squares = squares + (last_by_hand(source, student, ids) - wanted).square().sum()
    expected = 1000 * squares / (int(batch.valid.sum()) * 32)
    assert loss == pytest.approx(expected.item(), rel=1e-6)
    expected.backward()
    by_hand = gradients(student)
    assert student_gradients.keys() == by_hand.keys()
    assert student_gradients
    for name, gradient in by_hand.items():
        torch.testing.assert_close(student_gradients[name], gradient, rtol=1e-5, atol=1e-6 * float(gradient.abs().max()))


def test_all_fresh_parameters_and_no_others_are_trained() -> None:
    source, batch = small_llama(), everything(rows_of())
    student = student_of(source)
    course = course_of(source, student)
    learned(course, batch)
    fresh = {name for name, _ in student.named_parameters() if ".composed." in name}
    before = gradients(student)
    assert before.keys() == fresh == course.units[0].parameters.keys()
    assert [unit.name for unit in course.units] == ["model"]
    student.zero_grad()
    with torch.no_grad():
        for name, parameter in student.named_parameters():
            if ".layers.1." in name and name in fresh:
                parameter.mul_(3.0).add_(0.1)
    learned(course, batch)
    after = gradients(student)
    assert not any(torch.equal(gradient, after[name]) for name, gradient in before.items()), "each sees what the others have done"


def test_gradients_pass_through_layers_without_fresh_parameters() -> None:
    source, batch = small_llama(num_hidden_layers=3), everything(rows_of())
    student = student_of(source, HYBRID)
    course = course_of(source, student)
    learned(course, batch)
    student_gradients = gradients(student)
    assert student_gradients
    assert all(".layers.1.self_attn.composed." in name and bool(gradient.any()) for name, gradient in student_gradients.items())


@pytest.mark.parametrize("how", ["packed", "padded"])
@pytest.mark.parametrize("parts", [2, 4])
def test_micro_batches_add_up_to_the_batch(parts: int, how: Any) -> None:
    source = small_llama()
    student, batch = student_of(source), rows_of(how=how).batch(range(4))
    course = course_of(source, student)
    loss, once = learned(course, batch), gradients(student)
    student.zero_grad()
    assert learned(course, batch, parts) == pytest.approx(loss, rel=1e-5)
    for name, gradient in gradients(student).items():
        torch.testing.assert_close(gradient, once[name], rtol=1e-5, atol=1e-9)


@pytest.mark.parametrize("family", ["gpt2", "gemma2", "cohere2", "mixtral"])
def test_the_last_hidden_state_is_the_output_matrix_input_in_every_family(family: str) -> None:
    """The compared states are the inputs of the output matrix, and gradients reach all fresh parameters through norms, biases
    and experts.
    """
    source, batch = small(family, vocab_size=VOCABULARY), rows_of().batch(range(3))
    student: Any = student_of(source)
    course = course_of(source, student)
    learned(course, batch)
    student_gradients = gradients(student)
    assert student_gradients.keys() == course.units[0].parameters.keys()
    assert all(bool(gradient.any()) for gradient in student_gradients.values())
    inputs_seen: list[Tensor] = []
    student.eval().get_output_embeddings().register_forward_pre_hook(lambda _, inputs: inputs_seen.append(inputs[0]))
    with torch.no_grad():
        student(**batch.inputs(mask=True), use_cache=False)
        assert torch.equal(inputs_seen[0], last_hidden(student, batch))


@torch.no_grad()
def test_the_loss_compares_the_inputs_of_the_output_matrix() -> None:
    """At distance 0 the student's logits equal those of any teacher."""
    source, batch = small_llama(), everything(rows_of(how="padded"))
    student = student_of(source)
    logits = student(**batch.inputs(mask=True), use_cache=False).logits
    assert torch.equal(student.lm_head(last_hidden(student, batch)), logits)
    twin = ModelTransferCourse(student_of(source), student, transfer())
    assert float(twin.compute_losses(batch, 1.0)["model"]) == 0.0


def test_padding_changes_nothing_in_bidirectional_students() -> None:
    source = small_llama()
    student = student_of(source, "latte-bidirectional", "head.memory.0.size=8")
    batch = rows_of(how="padded").batch(range(2))
    course = course_of(source, student)
    before = float(course.compute_losses(batch, 1.0)["model"])
    padding = ~batch.valid
    assert bool(padding.any())
    other = Batch(batch.ids.masked_fill(padding, 9), batch.labels, batch.position, batch.valid)
    assert float(course.compute_losses(other, 1.0)["model"]) == pytest.approx(before, rel=1e-6)


def test_unsupported_students_are_refused(student: Path, texts: Path, tmp_path: Path) -> None:
    with pytest.raises(SpecError) as caught:
        load_spec("lolcats-workshop", [AT_THE_END])
    assert "recipe.transfer.cross_entropy" in str(caught.value)
    assert "layer by layer" in str(caught.value)
    load_spec("lolcats-workshop", [AT_THE_END, "recipe.transfer.cross_entropy=0", "recipe.transfer.mse=1"])
    with pytest.raises(TrainingError, match=r"--stream holds one layer .* leave --stream out, or pass --set recipe"):
        run(student, tmp_path / "out", texts, AT_THE_END, which="transfer", stream=True)
    assert not list(tmp_path.iterdir())
    resolved = teacher_of(small_llama()).config.read_spec()
    with pytest.raises(TrainingError, match="no fresh parameters"):
        check_transfer(resolved, transfer())


@pytest.fixture(scope="module")
def alone(student: Path, texts: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Both stages in one uninterrupted process."""
    out = tmp_path_factory.mktemp("alone") / "out"
    run(student, out, texts, AT_THE_END)
    return out


def test_a_run_lowers_the_error_of_fresh_parameters(alone: Path, student: Path, texts: Path, tmp_path: Path) -> None:
    """The held-out error decreases, its log and report have one unit, and only fresh parameters change."""
    longer = (AT_THE_END, "recipe.transfer.steps=40", "recipe.transfer.lr=5e-2", "recipe.transfer.start=scaled")
    report = run(student, tmp_path / "out", texts, *longer, which="transfer")
    (outcome,) = report.stages
    assert outcome.after.keys() == outcome.before.keys() == {"model"}
    assert outcome.after["model"] < 0.5 * outcome.before["model"]
    assert report.view().tables[0].rows[0][:2] == ("transfer", "model")
    own = [line for line in log(alone / "training") if line["stage"] == "transfer"]
    assert [line["step"] for line in own if "loss" in line] == [1, 2, 3, 4, 5, 6]
    assert all(set(line["loss"] if "loss" in line else line["held_out"]) == {"model"} for line in own)
    before, after = weights(student), weights(tmp_path / "out")
    assert {name for name in before if not torch.equal(before[name], after[name])} == {
        name for name in before if ".composed." in name
    }


@pytest.mark.parametrize("number", [2, 4])
def test_killed_runs_resume_to_the_same_bits(alone: Path, student: Path, texts: Path, tmp_path: Path, number: int) -> None:
    def child() -> None:
        killed_at(pytest.MonkeyPatch(), checkpoint, "save", number, behind=True)
        run(student, tmp_path / "out", texts, AT_THE_END, checkpoint_seconds=0.0)

    assert ending(forked(child)) == -signal.SIGKILL
    run(student, tmp_path / "out", texts, AT_THE_END, resume=True)
    for file in ("fresh.safetensors", "adapter/adapter_model.safetensors", "training/log.jsonl"):
        assert (tmp_path / "out" / file).read_bytes() == (alone / file).read_bytes()


def test_several_processes_equal_one(texts: Path, tmp_path: Path) -> None:
    """The runs have gradient checkpointing, tied embeddings, rows that two processes cannot share evenly, and fine-tuning."""
    student = make_student(tmp_path / "student", make_teacher(tmp_path / "teacher", tie_word_embeddings=True))
    overrides = (AT_THE_END, "recipe.transfer.batch=3", "recipe.transfer.accumulate=1", "recipe.finetune.steps=2")
    run(student, tmp_path / "one", texts, *overrides)
    assert several(2, lambda rank: run(student, tmp_path / "two", texts, *overrides, gradient_checkpointing=True)) == [0, 0]
    bounds: dict[str, dict[str, Any]] = {"loss": {"abs": 1e-5}, "held_out": {"abs": 1e-5}, "norm": {"rel": 1e-4}}
    for line, other in zip(log(tmp_path / "one" / "training"), log(tmp_path / "two" / "training"), strict=True):
        for name, figure in line.items():
            assert other[name] == (pytest.approx(figure, **bounds[name]) if name in bounds else figure)
    first, two = weights(tmp_path / "one"), weights(tmp_path / "two")
    for name, tensor in first.items():
        torch.testing.assert_close(two[name], tensor, rtol=0, atol=1e-5)
