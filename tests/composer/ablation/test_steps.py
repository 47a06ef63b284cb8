"""A step is done once for all processes, resumes after a stop, and a failure is not a result."""

from __future__ import annotations

import json
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from composer.ablation import steps as module
from composer.ablation.ablate import STEPS
from composer.ablation.options import Request
from composer.ablation.plan import AblationStep
from composer.ablation.steps import FAILURE, MARK, model_of, read_finished, run_step
from composer.errors import AblationError, TrainingError
from tests.composer.ablation.variants import chains_of, timeless, write_spec
from tests.composer.training.processes import ending, forked

Steps = dict[str, AblationStep]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / STEPS
    made.mkdir()
    (made / MARK).touch()
    return made


@pytest.fixture
def steps(ablation_request: Request, tmp_path: Path) -> Steps:
    (chain,) = chains_of([write_spec(tmp_path / "s.yaml")], ablation_request, tmp_path).values()
    return {step.kind: step for step in chain.steps}


def listed(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name != MARK)


def test_steps_run_once(steps: Steps, folder: Path) -> None:
    step = steps["build"]
    assert read_finished(step, folder) is None
    figures = run_step(step, folder)
    assert read_finished(step, folder) == figures
    assert set(figures) == {"spec_hash", "seconds"}
    written = (folder / f"{step.name}.json").stat().st_mtime_ns
    assert run_step(step, folder) == figures
    assert (folder / f"{step.name}.json").stat().st_mtime_ns == written
    assert listed(folder) == [step.name, f"{step.name}.json"]


LOSSES = {"model": 2.0}
CELL = {
    **{"model": "student", "task": "mqar,pairs=2", "length": 12, "scored": "tokens", "mean": 0.5, "standard_error": 0.25},
    **{"interval": None, "nats": None, "perplexity": None, "samples": 4, "seconds": 1.0, "failure": None},
    **{"by_depth": [], "by_position": []},
}
TRAINED = {"before": LOSSES, "after": LOSSES, "loss": 2.0, "teacher_loss": 1.0, "steps": 2, "tokens": 64, "seconds": 1.0}
GOOD: dict[str, dict[str, Any]] = {
    "build": {"spec_hash": "0a", "seconds": 1.0},
    "transfer": TRAINED,
    "compare": {"loss": 2.0, "teacher_loss": 1.0, "layers": [{"mse": 0.5, "divergence": None}], "seconds": 1.0},
    "finetune": TRAINED,
    "evaluate": {"cells": [CELL], "seconds": 1.0},
}
"""Figures as the files of finished steps have them."""


def kept(step: AblationStep, folder: Path, text: str) -> Any:
    """Return the figures of a step whose file has this text."""
    (folder / step.name).mkdir(exist_ok=True)
    (folder / f"{step.name}.json").write_bytes(text.encode(errors="surrogateescape"))
    return read_finished(step, folder)


@pytest.mark.parametrize("kind", GOOD)
def test_figures_are_read_by_the_schema_of_their_step(steps: Steps, folder: Path, kind: str) -> None:
    step, good = steps[kind], GOOD[kind]
    assert kept(step, folder, json.dumps(good)) == good
    other = GOOD["build" if kind != "build" else "compare"]
    for text in ("{}", "[]", "null", "", "{", "[" * 200_000, "\udcff", json.dumps(other), json.dumps(good | {"more": 1})):
        with pytest.raises(AblationError, match=r"\.json is damaged: .*\. Remove it: the step is then run again\."):
            kept(step, folder, text)
    for name in good:
        optional = [] if name in ("loss", "teacher_loss") else [None]
        for bad in ("x", [], True, {"x": "y"}, -1e308, float("nan"), float("inf"), 10**400, *optional):
            with pytest.raises(AblationError, match=r"\.json is damaged: .*\. Remove it: the step is then run again\."):
                kept(step, folder, json.dumps(good | {name: bad}))
        with pytest.raises(AblationError, match=f"is damaged: {name}: the field is missing"):
            kept(step, folder, json.dumps({key: value for key, value in good.items() if key != name}))


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"mean": 1e308}, r"mean: expected at most 1e\+39, got 1e\+308"),
        ({"mean": 1.5}, "expected a mean from 0 to 1, got 1.5"),
        ({"samples": 0}, "a mean of 0 samples"),
        ({"mean": None}, "expected the scores of mqar,pairs=2 at 12 tokens, got nothing"),
        ({"failure": "out of memory"}, "expected the scores of mqar,pairs=2 at 12 tokens, got nothing"),
        ({"length": 13}, "got mqar,pairs=2 at 13 tokens"),
        ({"task": "passkey"}, "got passkey at 12 tokens"),
    ],
)
def test_evaluations_with_other_settings_are_not_finished(
    steps: Steps, folder: Path, changes: dict[str, Any], problem: str
) -> None:
    with pytest.raises(AblationError, match=rf"is damaged: .*{problem}"):
        kept(steps["evaluate"], folder, json.dumps({"cells": [CELL | changes], "seconds": 1.0}))


def test_missing_models_are_reported(steps: Steps, folder: Path) -> None:
    kept(steps["finetune"], folder, json.dumps(GOOD["finetune"]))
    (folder / steps["finetune"].name).rmdir()
    with pytest.raises(AblationError, match=r"does not exist, but finetune-\w+\.json records it as finished\. Remove it"):
        read_finished(steps["finetune"], folder)


def test_figures_that_are_not_finite_fail(steps: Steps, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(module.RUN, "compare", lambda *_: GOOD["compare"] | {"loss": float("nan")})
    assert run_step(steps["compare"], folder)[FAILURE] == "loss: input should be a finite number, got nan"
    assert read_finished(steps["compare"], folder) is None


def test_a_step_killed_before_its_figures_runs_again(steps: Steps, folder: Path) -> None:
    """After a kill between the result and its figures, the step runs again over its files."""
    first = {kind: run_step(steps[kind], folder) for kind in ("build", "transfer")}
    weights = {kind: (folder / steps[kind].name / "fresh.safetensors").read_bytes() for kind in first}
    for kind, figures in first.items():
        step = steps[kind]
        (folder / f"{step.name}.json").unlink()
        (folder / f".{step.name}.0123abcd.partial").mkdir()
        assert timeless(run_step(step, folder)) == timeless(figures)
        assert (folder / step.name / "fresh.safetensors").read_bytes() == weights[kind]
    assert [name for name in listed(folder) if name.startswith(".")] == []


def test_every_step_uses_the_model_of_the_step_before_it(steps: Steps, folder: Path) -> None:
    assert model_of(steps["compare"].after, folder).name == steps["transfer"].name
    assert model_of(steps["finetune"].after, folder).name == steps["transfer"].name
    assert model_of(steps["evaluate"].after, folder).name == steps["finetune"].name


def test_a_failure_is_tried_again(steps: Steps, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    step = steps["build"]

    def fail(error: BaseException) -> dict[str, Any]:
        def raising(*_: Any) -> dict[str, Any]:
            raise error

        with monkeypatch.context() as patch:
            patch.setitem(module.RUN, "build", raising)
            return run_step(step, folder)

    assert fail(TrainingError("layer 1 diverged"))[FAILURE] == "layer 1 diverged"
    assert fail(torch.OutOfMemoryError())[FAILURE] == "out of memory on cpu"
    with pytest.raises(RuntimeError, match="a defect"):
        fail(RuntimeError("a defect"))
    assert listed(folder) == []
    assert FAILURE not in run_step(step, folder)


def test_failed_cells_keep_the_other_scores(steps: Steps, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A failed cell keeps the scores of other cells, and the step is tried again."""
    step = steps["evaluate"]
    step = replace(step, after=steps["build"], request=replace(step.request, lengths=(8, 12)))
    run_step(steps["build"], folder)
    from composer.evaluation import runner

    original = runner.score_cell

    def score(model: Any, tokenizer: Any, task: Any, length: int, **options: Any) -> Any:
        if length == 12:
            raise runner.CellFailed("out of memory")
        return original(model, tokenizer, task, length, **options)

    with monkeypatch.context() as patch:
        patch.setattr(runner, "score_cell", score)
        figures = run_step(step, folder)
    assert figures[FAILURE] == "mqar,pairs=2 at 12 tokens: out of memory"
    assert [cell["mean"] is None for cell in figures["cells"]] == [False, True]
    assert read_finished(step, folder) is None
    again = run_step(step, folder)
    assert FAILURE not in again
    assert timeless(again["cells"][0]) == timeless(figures["cells"][0])


def test_a_second_process_waits_and_uses_the_result(steps: Steps, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second process waits for a running step and then uses its result."""
    step, reading, writing = steps["build"], *os.pipe()

    def slow(*_: Any) -> dict[str, Any]:
        os.write(writing, b".")
        time.sleep(0.5)
        (folder / step.name).mkdir()
        return {"spec_hash": f"{os.getpid():x}"}

    monkeypatch.setitem(module.RUN, "build", slow)
    child = forked(lambda: run_step(step, folder))
    os.read(reading, 1)
    assert run_step(step, folder)["spec_hash"] == f"{child:x}"
    assert ending(child) == 0
    assert json.loads((folder / f"{step.name}.json").read_text())["spec_hash"] == f"{child:x}"
