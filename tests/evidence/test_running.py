"""Missing runs are computed once and kept. Kept runs are not repeated."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from composer.ablation.options import Request
from composer.ablation.runner import one_process
from evidence import running
from evidence.experiments import TEACHER, Experiment
from evidence.kept import path_of, read_run, read_runs
from evidence.running import find_missing_runs, run_missing

ONE_STEP = (
    "recipe={sequence: 32, rows: whole}",
    "recipe.transfer=null",
    "recipe.finetune={lr: 1e-3, steps: 1, epochs: null, batch: 1, lora: {rank: 1, alpha: 1, targets: [q]}}",
)
SCORING = Request(TEACHER, tasks=("recall,pairs=2",), lengths=(32,), samples=2, seeds=(0, 1))
BASE = Experiment("taught", ("lolcats",), replace(SCORING, data=("stories,samples=4",), share=0.0), ONE_STEP)
AFTER = Experiment("after", ("lola",), SCORING, base=(BASE, "lolcats"))


@pytest.fixture
def messages() -> list[str]:
    return []


def weights(model: Path) -> list[bytes]:
    return [path.read_bytes() for path in sorted(model.glob("*.safetensors"))]


def test_each_run_is_computed_once_and_kept_in_a_separate_file(tmp_path: Path, messages: list[str]) -> None:
    runs_folder, work = tmp_path / "runs", tmp_path / "work"
    assert run_missing(BASE, work, one_process, messages.append, runs_folder=runs_folder) == []
    assert sorted(path.name for path in runs_folder.rglob("*")) == ["lolcats.seed-0.json", "lolcats.seed-1.json", "taught"]
    first = read_run(path_of("taught", "lolcats", 0, runs_folder))
    assert first is not None
    assert set(first.figures) == {"recall,pairs=2 32"}
    assert first.seconds > 0
    messages.clear()
    assert run_missing(BASE, work / "elsewhere", one_process, messages.append, runs_folder=runs_folder) == []
    assert messages == ["taught: 0 runs to do"]
    assert not (work / "elsewhere").exists()


def test_runs_of_other_settings_count_as_missing(tmp_path: Path, messages: list[str]) -> None:
    run_missing(BASE, tmp_path / "work", one_process, messages.append, runs_folder=tmp_path)
    assert find_missing_runs(BASE, tmp_path) == {}
    other = replace(BASE, overrides=(*ONE_STEP, "recipe.finetune.lr=2e-3"))
    assert set(find_missing_runs(other, tmp_path)) == {("lolcats", 0), ("lolcats", 1)}
    path_of("taught", "lolcats", 1, tmp_path).unlink()
    assert set(find_missing_runs(BASE, tmp_path)) == {("lolcats", 1)}


def test_experiments_build_on_the_models_of_other_experiments(tmp_path: Path, messages: list[str]) -> None:
    runs_folder, work = tmp_path / "runs", tmp_path / "work"
    assert run_missing(AFTER, work, one_process, messages.append, runs_folder=runs_folder) == []
    assert {(run.experiment, run.seed) for run in read_runs(runs_folder)} == {("after", 0), ("after", 1)}
    assert weights(work / "after" / "trained-0") != weights(work / "after" / "trained-1")
    # Another recipe of the model before it makes another run of this one.
    before = find_missing_runs(AFTER, runs_folder)
    other = replace(AFTER, base=(replace(BASE, overrides=(*ONE_STEP, "recipe.finetune.lr=2e-3")), "lolcats"))
    assert (before, set(find_missing_runs(other, runs_folder))) == ({}, {("lola", 0), ("lola", 1)})


def test_failed_runs_are_reported_and_not_kept(tmp_path: Path, messages: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    real = running.run

    def lose(chains, request, steps, workers, tell):  # type: ignore[no-untyped-def]
        results = real(chains, request, steps, workers)
        path = steps / f"{chains[0].steps[-1].name}.json"
        path.unlink()
        results[chains[0].steps[-1].name] = {"failure": "out of memory on cpu", "seconds": 0.0}
        tell(None, {}, 0, 0)
        return results

    monkeypatch.setattr(running, "run", lose)
    failures = run_missing(BASE, tmp_path / "work", one_process, messages.append, runs_folder=tmp_path / "runs")
    assert failures == ["taught: lolcats, seed 0: out of memory on cpu"]
    assert [run.seed for run in read_runs(tmp_path / "runs")] == [1]
