"""A stage that is stopped anywhere and continued ends with the same bits, and its log has every step once."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from weakref import WeakSet

import pytest
import torch

from composer.data.packing import Batch, PackedRows
from composer.errors import TrainingError
from composer.spec.recipe import Stage, Transfer
from composer.training import checkpoint, loop, unit
from composer.training.journal import LOG, Journal
from composer.training.loop import StageSetting, StepProgress, length_of, run_stage
from tests.composer.training.runs import rows_of
from tests.composer.training.stages import HELD_OUT, ROWS, STAGES, StoppedError, course_of, log, run, same, stop_at


@pytest.mark.parametrize("name", STAGES)
def test_runs_stopped_at_any_checkpoint_resume_to_the_same_output(tmp_path: Path, uninterrupted: dict[str, Any], name: str) -> None:
    """Each step has a checkpoint. The watcher is called before the checkpoint is written."""
    for step in (1, 4, 6):
        with pytest.raises(StoppedError):
            run(tmp_path, STAGES[name], checkpoint_seconds=0.0, watch=stop_at(step))
    expected, lines = uninterrupted[name]
    assert same(run(tmp_path, STAGES[name], checkpoint_seconds=0.0), expected)
    assert log(tmp_path) == lines
    steps = [line["step"] for line in lines if "loss" in line]
    assert steps == list(range(1, expected[0].steps + 1))


@pytest.mark.parametrize("name", STAGES)
def test_steps_after_the_last_checkpoint_run_again(
    tmp_path: Path, uninterrupted: dict[str, Any], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Steps after the last checkpoint run again, and are in the log once."""
    original, saved = checkpoint.save, []

    def seldom(folder: Path, step: int, *rest: Any) -> None:
        if step == 2 or step > 5:
            saved.append(step)
            original(folder, step, *rest)

    monkeypatch.setattr(checkpoint, "save", seldom)
    with pytest.raises(StoppedError):
        run(tmp_path, STAGES[name], checkpoint_seconds=0.0, watch=stop_at(5))
    assert saved == [2]
    with (tmp_path / LOG).open("a") as stream:
        stream.write('{"stage": "' + name + '", "st')
    expected, lines = uninterrupted[name]
    assert same(run(tmp_path, STAGES[name], checkpoint_seconds=0.0), expected)
    assert log(tmp_path) == lines


def test_finished_stages_are_not_run_again(tmp_path: Path, uninterrupted: dict[str, Any]) -> None:
    run(tmp_path, STAGES["transfer"])
    again = run(tmp_path, STAGES["transfer"], watch=stop_at(*range(99)))
    expected, lines = uninterrupted["transfer"]
    assert same(again, expected)
    assert log(tmp_path) == lines


def test_held_out_rows_are_read_as_they_are_evaluated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With streamed layers, rows come with hidden states, and those of all rows may not fit in memory."""
    original, alive, counts = PackedRows.batch, WeakSet[Batch](), list[int]()

    def batch(rows: PackedRows, indices: list[int]) -> Batch:
        made = original(rows, indices)
        alive.add(made)
        counts.append(len(alive))
        return made

    monkeypatch.setattr(PackedRows, "batch", batch)
    run(tmp_path, STAGES["transfer"], held_out=rows_of(8, lengths=(8,) * 12))
    assert len(counts) > 12
    assert max(counts) < 4


def test_the_outcome_equals_the_log(uninterrupted: dict[str, Any]) -> None:
    (outcome, parameters), lines = uninterrupted["finetune"]
    evaluations = {line["step"]: line["held_out"]["model"] for line in lines if "held_out" in line}
    assert list(evaluations) == [0, 2, 4, 6]
    assert outcome.before == {"model": evaluations[0]}
    assert outcome.after == {"model": min(evaluations.values())}
    assert outcome.tokens == [line["tokens"] for line in lines if "loss" in line][-1]
    course = course_of(STAGES["finetune"])
    with torch.no_grad():
        for name, parameter in course.units[0].parameters.items():
            parameter.copy_(parameters[name])
    batch = HELD_OUT.batch(range(len(HELD_OUT)))
    judged = float(course.compute_losses(batch, course.count(batch))["model"])
    assert judged == pytest.approx(outcome.after["model"], rel=1e-5), "the parameters are those of the best evaluation"


def test_a_stage_without_improvement_ends_with_its_start(tmp_path: Path) -> None:
    """If nothing improves, a stage ends with its start, also after a stop."""
    stage = STAGES["finetune"].model_copy(update={"lr": 50.0, "clip": None})
    course = course_of(stage)
    start = {name: value.detach().clone() for name, value in course.units[0].parameters.items()}
    with pytest.raises(StoppedError):
        run(tmp_path, stage, checkpoint_seconds=0.0, watch=stop_at(3))
    outcome, parameters = run(tmp_path, stage)
    assert outcome.after == outcome.before
    assert all(torch.equal(value, start[name]) for name, value in parameters.items())


@pytest.mark.parametrize(("factor", "warned"), [(0.1, ["model"]), (10.0, [])])
def test_a_loss_that_the_first_steps_raise_is_warned_of(
    tmp_path: Path, factor: float, warned: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The losses of this small model hardly change, so the factor from which a loss has risen is set below and above them."""
    monkeypatch.setattr(unit, "RISEN", factor)
    messages: list[str] = []
    run(tmp_path, STAGES["finetune"].model_copy(update={"steps": 21, "epochs": None}), warn=messages.extend)
    assert [message.partition(": the loss was")[0] for message in messages] == warned


def test_patience_stops_each_layer_and_then_the_stage(tmp_path: Path) -> None:
    """Each layer stops separately, and the stage stops with its last layer."""
    stage = Transfer(lr=3.0, steps=40, batch=2, evaluate=1, patience=2, clip=None)
    outcome, _ = run(tmp_path, stage)
    assert outcome.steps < 40
    lines = [set(line["loss"]) for line in log(tmp_path) if "loss" in line]
    assert lines[0] == {"layer 0", "layer 1"}
    assert len(lines) == outcome.steps


@pytest.mark.parametrize(
    ("options", "word"), [({"seed": 5}, "seed"), ({"rows": rows_of(12, seed=9)}, "data"), ({"stage": {"lr": 0.5}}, "recipe")]
)
def test_checkpoints_of_another_run_are_refused(tmp_path: Path, options: dict[str, Any], word: str) -> None:
    stage = STAGES["transfer"]
    with pytest.raises(StoppedError):
        run(tmp_path, stage, checkpoint_seconds=0.0, watch=stop_at(3))
    changed = stage.model_copy(update=options.pop("stage", {}))
    with pytest.raises(TrainingError, match=f"was begun with another {word}. Use the same to continue, or start again"):
        run(tmp_path, changed, **options)


def test_stages_without_held_out_rows_keep_the_last_step(tmp_path: Path) -> None:
    outcome, _ = run(tmp_path, STAGES["transfer"], held_out=None)
    assert (outcome.steps, outcome.before, outcome.after) == (6, {}, {})


def test_losses_that_are_not_finite_are_reported_with_their_layer(tmp_path: Path) -> None:
    """The earlier checkpoint is kept."""
    stage = STAGES["transfer"]
    course = course_of(stage)

    def poison(step: StepProgress) -> None:
        if step.step == 4:
            with torch.no_grad():
                next(iter(course.units[1].parameters.values())).fill_(torch.nan)

    with pytest.raises(TrainingError, match="layer 1: the loss is nan at step 5"):
        run_stage("transfer", course, stage, ROWS, None, StageSetting(tmp_path, Journal(tmp_path), 0, 0.0, watch=poison))
    assert (tmp_path / "transfer").is_dir()


def test_the_number_of_steps_follows_the_recipe() -> None:
    count = len(ROWS)
    assert length_of(Stage(lr=1, steps=7, epochs=90), ROWS) == 7
    assert length_of(Stage(lr=1, epochs=3, batch=2), ROWS) == -(-3 * count // 2)
    assert length_of(Stage(lr=1, tokens=1, epochs=3), ROWS) == 1
    assert length_of(Stage(lr=1, tokens=5 * ROWS.tokens, batch=1), ROWS) == 5 * count


@pytest.mark.parametrize("name", STAGES)
def test_long_steps_are_divided_and_announced_after_their_first_part(
    tmp_path: Path, uninterrupted: dict[str, Any], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A part has one row of 8 tokens. Only rounding changes."""
    stage, messages = STAGES[name].model_copy(update={"accumulate": 1}), list[str]()
    monkeypatch.setattr(loop, "SLOW", 0.0)
    outcome, _ = run(tmp_path, stage, part_tokens=15, tell=messages.append)
    tokens = r"\d+ tokens and needs about \d+ s, and 6 steps need about \d+ s, without evaluations"
    (message,) = messages
    assert re.match(f"{type(stage).__name__.lower()}: a step has {tokens}", message)
    for name_of_unit, loss in uninterrupted[name][0][0].after.items():
        assert outcome.after[name_of_unit] == pytest.approx(loss, rel=1e-3)
    messages.clear()
    run(tmp_path / "quick", stage, part_tokens=16, tell=messages.append)
    assert not messages, "a step of one part has its own line of progress"
