"""Trackers get the figures of the log, under one run that a continued run continues, and only if the user names them."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import composer
from composer.errors import ComposerError, Stopped, TrainingError
from composer.training import options as options_module
from composer.training import tracking
from composer.training.journal import LOG
from composer.training.loop import StepProgress
from composer.training.options import TRACKERS
from composer.training.tracking import TRACKED
from tests.composer.training.processes import several
from tests.composer.training.runs import make_student, make_teacher, run, write_texts

SHORT = ("recipe.transfer.steps=2", "recipe.transfer.evaluate=2", "recipe.finetune.steps=2", "recipe.finetune.evaluate=2")


class FakeTracker(ModuleType):
    """A package with wandb's functions. Each call is a line of a file, as several processes may write."""

    def __init__(self, name: str, file: Path) -> None:
        super().__init__(name)
        self.file, self.failing = file, ""

    def init(self, **options: Any) -> FakeTracker:
        print("* started")
        return self._add("init", options)

    def define_metric(self, name: str, step_metric: str) -> None:
        self._add("define_metric", {name: step_metric})

    def log(self, values: dict[str, float], **options: Any) -> None:
        self._add("log", values | options)

    def finish(self) -> None:
        self._add("finish", {})

    def _add(self, call: str, values: dict[str, Any]) -> FakeTracker:
        if call == self.failing:
            raise ConnectionError("no key,\n  log in first.")
        with self.file.open("a") as stream:
            stream.write(json.dumps([os.getpid(), call, values]) + "\n")
        return self

    def calls(self, call: str) -> list[dict[str, Any]]:
        lines = self.file.read_text().splitlines() if self.file.exists() else []
        return [values for _, name, values in map(json.loads, lines) if name == call]


@pytest.fixture
def tracker(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeTracker:
    name = getattr(request, "param", "wandb")
    fake = FakeTracker(name, tmp_path / "calls.jsonl")
    monkeypatch.setitem(sys.modules, name, fake)
    monkeypatch.setattr(options_module, "version_of", lambda package: "1.0" if package == name else None)
    monkeypatch.delenv(f"{name.upper()}_PROJECT", raising=False)
    return fake


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("tracked")
    return make_student(folder / "student", make_teacher(folder / "teacher")), write_texts(folder / "texts.jsonl")


def by_step(fake: FakeTracker) -> dict[tuple[str, int], dict[str, float]]:
    """Return the figures that a tracker has, by stage and step."""
    figures: dict[tuple[str, int], dict[str, float]] = {}
    for values in fake.calls("log"):
        stages = {name.partition("/")[0] for name in values if "/" in name}
        (stage,) = stages
        step = values.pop("step") if "step" in values else values.pop(f"{stage}/step")
        figures.setdefault((stage, step), {}).update({name.partition("/")[2]: value for name, value in values.items()})
    return figures


def of_log(out: Path) -> dict[tuple[str, int], dict[str, float]]:
    """Return the figures of a finished run's log, by stage and step."""
    figures: dict[tuple[str, int], dict[str, float]] = {}
    for line in map(json.loads, (out / "training" / LOG).read_text().splitlines()):
        flat = figures.setdefault((line.pop("stage"), line.pop("step")), {})
        for name, value in line.items():
            flat |= {f"{name}/{part}": number for part, number in value.items()} if isinstance(value, dict) else {name: value}
    return figures


@pytest.mark.parametrize("tracker", TRACKERS, indirect=True)
def test_a_tracker_has_the_figures_of_the_log(
    tracker: FakeTracker, inputs: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run that was stopped and continued is one run in the tracker."""
    student, texts = inputs
    out, steps = tmp_path / "out", []

    def stop(progress: StepProgress) -> None:
        steps.append(progress)
        if len(steps) == 3:
            raise Stopped("here", 2)

    with pytest.raises(Stopped, match="here"):
        run(student, out, texts, *SHORT, track=tracker.__name__, watch=stop, checkpoint_seconds=0.0)
    assert len(tracker.calls("finish")) == 1, "the run is ended in the tracker, too"
    run(student, out, texts, *SHORT, track=tracker.__name__, resume=True, checkpoint_seconds=0.0)
    assert by_step(tracker) == of_log(out)
    first, second = tracker.calls("init")
    assert first == second
    assert first["resume"] == "allow"
    assert first["project"] == "composer"
    assert first["name"].startswith("out-")
    assert first["config"]["recipe"]["finetune"]["steps"] == 2
    assert not {str(student), str(texts)} & set(json.dumps(first)), "paths are not sent"
    assert capsys.readouterr().out == "", "stdout is for results"
    if tracker.__name__ == "wandb":
        assert first["id"] == first["name"].removeprefix("out-")
        assert {"transfer/*": "transfer/step"} in tracker.calls("define_metric")


def test_nothing_is_sent_unasked(tracker: FakeTracker, inputs: tuple[Path, Path], tmp_path: Path) -> None:
    run(inputs[0], tmp_path / "out", inputs[1], *SHORT)
    assert not tracker.file.exists()


def test_only_the_first_process_sends(tracker: FakeTracker, inputs: tuple[Path, Path], tmp_path: Path) -> None:
    student, texts = inputs
    codes = several(2, lambda rank: run(student, tmp_path / "out", texts, *SHORT, track=tracker.__name__))
    assert codes == [0, 0]
    assert len({json.loads(line)[0] for line in tracker.file.read_text().splitlines()}) == 1
    assert by_step(tracker) == of_log(tmp_path / "out")


def test_a_failing_tracker_is_named(tracker: FakeTracker, inputs: tuple[Path, Path], tmp_path: Path) -> None:
    """The run goes on with the tracker or without it."""
    for call, what in (("init", "begin the run"), ("log", "add a step"), ("finish", "end the run")):
        tracker.failing = call
        with pytest.raises(
            TrainingError,
            match=rf"^--track wandb could not {what}: no key, log in first\. Fix that or leave --track wandb out, and run the same",
        ):
            run(inputs[0], tmp_path / "out", inputs[1], *SHORT, track="wandb", resume=call != "init")
    run(inputs[0], tmp_path / "out", inputs[1], *SHORT, resume=True)


def test_a_damaged_id_is_refused(tracker: FakeTracker, tmp_path: Path) -> None:
    (tmp_path / TRACKED).write_text('{"id": "../other"}')
    with (
        pytest.raises(TrainingError, match=rf"{TRACKED} is damaged: id: .*\. Remove it to continue as a new run in the tracker\."),
        tracking.tracking([tracker.__name__], tmp_path, "out", {}),
    ):
        pass
    assert not tracker.file.exists()


@pytest.mark.parametrize(
    ("track", "message"),
    [
        ("wandbb", r'^track: "wandbb" is unknown; did you mean "wandb"\? Known: wandb, trackio\.$'),
        (["wandb", "trackio"], r"^track: wandb is not installed: pip install wandb$"),
    ],
)
def test_names_are_checked_before_the_model_is_read(track: Any, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(options_module, "version_of", lambda package: None)
    with pytest.raises(ComposerError, match=message):
        composer.distill("there/is/no/such/model", "no.jsonl", track=track)
