"""Calibrated starts in a run: their effect, their record, and equal results in memory, streamed and after a stop."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import composer
from composer.spec.recipe import Transfer
from composer.training.calibration import CALIBRATED_TOKENS, ROWS, SCALED_TOKENS, begin_transfer, rows_to_begin
from composer.training.loop import StepProgress
from composer.training.run import TrainingReport
from composer.weights.record import read_record
from tests.composer.training.runs import rows_of, run, small_llama, student_of, teacher_of
from tests.composer.training.stages import StoppedError
from tests.composer.training.streams import STREAM, same
from tests.composer.weights.students import weights

CALIBRATED = "recipe.transfer.start=calibrated"
STAGE = Transfer(lr=0.01, steps=6, batch=4, start="calibrated")
LAWCAT: dict[str, Any] = {
    "compose": 1,
    "name": "gated",
    "head": {
        "position": "none",
        "conv": {"kernel": 3},
        "feature_map": {"kind": "hedgehog", "dim": 4, "share": "qk"},
        "memory": [{"kind": "state", "gate": {"kind": "channel", "rank": 2}}],
    },
}
PLACE = "model.layers.{layer}.self_attn.composed.head.{part}"


def fresh(model: torch.nn.Module) -> set[str]:
    return {name for name, _ in model.named_parameters() if ".composed." in name}


def names(*parts: str, layers: int = 2) -> tuple[str, ...]:
    return tuple(PLACE.format(layer=layer, part=part) for layer in range(layers) for part in parts)


@pytest.fixture(scope="module")
def plain(student: Path, texts: Path, tmp_path_factory: pytest.TempPathFactory) -> TrainingReport:
    """A run without calibration."""
    return run(student, tmp_path_factory.mktemp("plain") / "out", texts, "recipe.transfer.start=scaled", which="transfer")


@pytest.fixture(scope="module")
def calibrated(student: Path, texts: Path, tmp_path_factory: pytest.TempPathFactory) -> TrainingReport:
    """The same run with calibration."""
    return run(student, tmp_path_factory.mktemp("calibrated") / "out", texts, CALIBRATED, which="transfer")


def test_a_calibrated_start_is_nearer_to_the_teacher_and_is_recorded(plain: TrainingReport, calibrated: TrainingReport) -> None:
    (stage,), (other,) = calibrated.stages, plain.stages
    assert other.start is None
    assert stage.start is not None
    assert sorted(stage.start.calibrated) == sorted(names("window", "feature_map"))
    assert stage.start.kept == ()
    assert sum(stage.before.values()) < sum(other.before.values())
    record = read_record(calibrated.out)
    assert record is not None
    assert record.training[0].start == stage.start
    assert record.training[0].recipe["start"] == "calibrated"
    notes = calibrated.view().notes
    assert any("head.window, head.feature_map" in message and "Not calibrated" not in message for message in notes)


def test_a_record_of_a_start_that_changes_nothing_has_no_report_of_it(plain: TrainingReport) -> None:
    record = read_record(plain.out)
    assert record is not None
    assert "start" not in record.model_dump(mode="json")["training"][0]


def test_streamed_calibration_equals_calibration_in_memory(
    student: Path, texts: Path, tmp_path: Path, calibrated: TrainingReport
) -> None:
    """The run is stopped in its second layer and continued."""
    stopped_here(student, tmp_path / "out", texts)
    learned = run(student, tmp_path / "out", texts, CALIBRATED, resume=True, **STREAM)
    (streamed,), (together,) = learned.stages, calibrated.stages
    assert streamed.start is not None
    assert together.start is not None
    assert (streamed.start.calibrated, streamed.start.kept) == (together.start.calibrated, together.start.kept)
    assert (streamed.before, streamed.after) == (together.before, together.after)
    assert same(weights(calibrated.out), tmp_path / "out")


def stopped_here(student: Path, out: Path, texts: Path) -> None:
    def watch(step: StepProgress) -> None:
        if (step.stage, step.step) == ("transfer 1", 3):
            raise StoppedError

    with pytest.raises(StoppedError):
        run(student, out, texts, CALIBRATED, watch=watch, **STREAM)


def test_resumed_runs_equal_uninterrupted_runs(student: Path, texts: Path, tmp_path: Path, calibrated: TrainingReport) -> None:
    def watch(step: StepProgress) -> None:
        if step.step == 3:
            raise StoppedError

    with pytest.raises(StoppedError):
        run(student, tmp_path / "out", texts, CALIBRATED, which="transfer", watch=watch, checkpoint_seconds=0.0)
    run(student, tmp_path / "out", texts, CALIBRATED, which="transfer", resume=True)
    assert same(weights(calibrated.out), tmp_path / "out")


def test_parts_that_cannot_be_calibrated_keep_their_start() -> None:
    """The convolution and the gate's matrices keep their start, and the gate's bias does not."""
    source = small_llama().float()
    student, teacher = student_of(source, LAWCAT), teacher_of(source)
    before = {name: parameter.clone() for name, parameter in student.named_parameters()}
    start, _ = begin_transfer(student, teacher, STAGE, rows_of(24), 0, fresh(student))
    assert start is not None
    assert start.calibrated == names("feature_map", "state_gate")
    assert start.kept == names("conv")
    moved = {name for name, parameter in student.named_parameters() if not torch.equal(parameter, before[name])}
    assert moved == {*names("feature_map.weight"), *names("state_gate.bias")}


@pytest.mark.parametrize("memory", [["window", "state"], [{"kind": "window", "size": 4, "weight": "learned"}, "state"]])
def test_calibration_is_deterministic(memory: list[Any]) -> None:
    source = small_llama().float()
    spec = {"compose": 1, "name": "x", "head": {"feature_map": {"kind": "hedgehog", "dim": 4}, "memory": memory}}
    started = []
    for _ in range(2):
        student = student_of(source, spec)
        begin_transfer(student, teacher_of(source), STAGE, rows_of(24), 0, fresh(student))
        started.append(dict(student.named_parameters()))
    assert all(torch.equal(value, started[1][name]) for name, value in started[0].items())


COMPRESSED: dict[str, Any] = {"compose": 1, "name": "x", "head": {"memory": [{"kind": "compressed", "rank": 0.99}]}}


@pytest.mark.parametrize(
    "overrides",
    [
        (),
        ("head.memory.0.rope=4", "head.memory.0.rank=24"),
        ("head.memory.0.rotate=kept", "head.memory.0.rope=8", "head.memory.0.rank=16"),
        ('head.memory=[{kind: window, size: 4}, {kind: compressed, rank: 32}]',),
        ("layers=[{at: all, use: [{head: head, heads: 1/2}, {head: source, heads: 1/2}]}]", "head.memory.0.rank=16"),
    ],
    ids=["all rotated", "some kept", "all kept", "below a window", "a group of heads"],
)  # fmt: skip
def test_compressed_pairs_of_full_rank_give_the_logits_of_the_source(overrides: tuple[str, ...]) -> None:
    source = small_llama()
    student = student_of(source, COMPRESSED, *(overrides or ("head.memory.0.rank=32",)))
    start, _ = begin_transfer(student, teacher_of(source), STAGE, rows_of(24), 0, fresh(student))
    assert start is not None
    assert all(".compressed" in name for name in start.calibrated)
    ids = torch.arange(20)[None]
    with torch.no_grad():
        torch.testing.assert_close(student(ids).logits, source(ids).logits, rtol=1e-6, atol=1e-7)


def test_a_calibrated_start_of_half_the_rank_is_nearer_to_the_source() -> None:
    source, errors = small_llama(), list[float]()
    for calibrated in (False, True):
        student: Any = composer.build(COMPRESSED, source, overrides=["head.memory.0.rank=0.5"])
        if calibrated:
            begin_transfer(student, teacher_of(source), STAGE, rows_of(24), 0, fresh(student))
        ids = torch.arange(20)[None]
        with torch.no_grad():
            errors.append(float((student(ids).logits - source(ids).logits).square().mean()))
    assert errors[1] < errors[0] / 2


def test_padding_does_not_change_calibration() -> None:
    """Rows with padding of other tokens give the same result as rows without padding."""
    source = small_llama()
    rows = rows_of(16, how="padded", lengths=(9, 12, 7, 16))
    assert not rows.valid.all()
    started = []
    for fill in (0, 5):
        student = student_of(source, LAWCAT)
        rows.ids[~rows.valid] = fill
        begin_transfer(student, teacher_of(source), STAGE, rows, 0, fresh(student))
        started.append(dict(student.named_parameters()))
    for name, value in started[0].items():
        torch.testing.assert_close(value, started[1][name], rtol=1e-6, atol=1e-8)


def test_calibration_uses_a_bounded_number_of_the_stages_rows() -> None:
    rows = rows_of(16, lengths=(16,) * 100)
    assert len(rows_to_begin(STAGE, rows, 0)) == ROWS
    rows = rows_of(256, lengths=(256,) * 100)
    few, many = (rows_to_begin(STAGE.model_copy(update={"start": start}), rows, 0) for start in ("scaled", "calibrated"))
    assert (len(few), len(many)) == (SCALED_TOKENS // 256, CALIBRATED_TOKENS // 256)
    assert many[: len(few)] == few
    assert len(rows_to_begin(STAGE, rows_of(16, lengths=(16,) * 3), 0)) == 3
    assert len(rows_to_begin(STAGE, rows_of(8192, lengths=(8192,) * 3), 0)) == 1


def test_model_transfer_starts_calibrated(student: Path, texts: Path, tmp_path: Path) -> None:
    plain = run(student, tmp_path / "plain", texts, "recipe.transfer.at=model", "recipe.transfer.start=scaled", which="transfer")
    learned = run(student, tmp_path / "out", texts, "recipe.transfer.at=model", CALIBRATED, which="transfer")
    assert learned.stages[0].start is not None
    assert learned.stages[0].before != plain.stages[0].before
