"""A step is done once, whoever asks; what is left of one that was stopped does no harm; a failure is no result."""

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
from composer.ablation.plan import AblationStep, Request
from composer.ablation.steps import FAILURE, MARK, found, model_of, run_step
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
def steps(asked: Request, tmp_path: Path) -> Steps:
    (chain,) = chains_of([write_spec(tmp_path / "s.yaml")], asked, tmp_path).values()
    return {step.kind: step for step in chain.steps}


def listed(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name != MARK)


def test_once(steps: Steps, folder: Path) -> None:
    step = steps["build"]
    assert found(step, folder) is None
    figures = run_step(step, folder)
    assert found(step, folder) == figures
    assert set(figures) == {"spec_hash", "seconds"}
    written = (folder / f"{step.name}.json").stat().st_mtime_ns
    assert run_step(step, folder) == figures
    assert (folder / f"{step.name}.json").stat().st_mtime_ns == written
    assert listed(folder) == [step.name, f"{step.name}.json"]


@pytest.mark.parametrize("text", ["{", "[]", "[" * 200_000, "\udcff"], ids=range(4))
def test_damaged_figures_are_told(steps: Steps, folder: Path, text: str) -> None:
    path = folder / f"{steps['build'].name}.json"
    path.write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(AblationError, match=r"\.json is damaged .*Remove it: the step is then done again"):
        found(steps["build"], folder)


def test_a_kill_between_a_result_and_its_figures(steps: Steps, folder: Path) -> None:
    """The same is done once more, over what stands there."""
    first = {kind: run_step(steps[kind], folder) for kind in ("build", "transfer")}
    weights = {kind: (folder / steps[kind].name / "fresh.safetensors").read_bytes() for kind in first}
    for kind, figures in first.items():
        step = steps[kind]
        (folder / f"{step.name}.json").unlink()
        (folder / f".{step.name}.0123abcd.partial").mkdir()
        assert timeless(run_step(step, folder)) == timeless(figures)
        assert (folder / step.name / "fresh.safetensors").read_bytes() == weights[kind]
    assert [name for name in listed(folder) if name.startswith(".")] == []


def test_the_model_before(steps: Steps, folder: Path) -> None:
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


def test_a_cell_that_fails_leaves_the_others(steps: Steps, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their scores are figures, and the step is tried again."""
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
    assert found(step, folder) is None
    again = run_step(step, folder)
    assert FAILURE not in again
    assert timeless(again["cells"][0]) == timeless(figures["cells"][0])


def test_who_comes_later_waits_and_finds_it_done(steps: Steps, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process works on the same step: it is not done at the same time, and not twice."""
    step, reading, writing = steps["build"], *os.pipe()

    def slow(*_: Any) -> dict[str, Any]:
        os.write(writing, b".")
        time.sleep(0.5)
        return {"process": os.getpid()}

    monkeypatch.setitem(module.RUN, "build", slow)
    child = forked(lambda: run_step(step, folder))
    os.read(reading, 1)
    assert run_step(step, folder)["process"] == child
    assert ending(child) == 0
    assert json.loads((folder / f"{step.name}.json").read_text())["process"] == child


@pytest.mark.parametrize("text", ["{", "[]", "\udce9", '{"a":' + "[" * 500_000 + "]" * 500_000 + "}"])
def test_what_is_kept_and_damaged_is_told(steps: Steps, folder: Path, text: str) -> None:
    path = folder / f"{steps['build'].name}.json"
    path.write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(AblationError, match=r"Remove it: the step is then done again"):
        found(steps["build"], folder)
