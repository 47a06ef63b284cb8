"""An evaluation is checked before models are loaded, reports every cell, and resumes after a kill with the same results."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

import composer
from composer.errors import ComposerError, EvaluationError, SourceError, TaskError
from composer.evaluation.folder import RESULTS, RUN, SAMPLES, TABLE, ScoreLog
from composer.evaluation.lengths import Subject
from composer.evaluation.options import EvaluationOptions, EvaluationProgress
from composer.evaluation.report import EvaluationReport
from composer.evaluation.runner import evaluate
from composer.evaluation.scoring import score_cell
from composer.tasks.recall import Recall
from tests.composer.evaluation.conftest import TEACHER

TASKS = ["passkey,recall,stories"]
LENGTHS = [128, 300]


def run(folders: dict[str, Path], out: Path | None = None, **options: Any) -> EvaluationReport:
    defaults: dict[str, Any] = {"samples": 5, "batch_tokens": 2 * 300, "out": out}
    return evaluate([TEACHER, folders["lawcat"]], TASKS, LENGTHS, EvaluationOptions(**(defaults | options)))


def timeless(value: Any) -> Any:
    """Remove the fields that differ between runs."""
    if isinstance(value, dict):
        return {key: timeless(item) for key, item in value.items() if key != "seconds"}
    return [timeless(item) for item in value] if isinstance(value, list) else value


def results(folder: Path) -> tuple[Any, list[Any], str]:
    lines = (folder / SAMPLES).read_text().splitlines()
    return (
        timeless(json.loads((folder / RESULTS).read_text())),
        [timeless(json.loads(line)) for line in lines],
        (folder / TABLE).read_text(),
    )


@pytest.fixture(scope="module")
def whole(folders: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the results of an uninterrupted run."""
    folder = tmp_path_factory.mktemp("results") / "whole"
    run(folders, folder)
    return folder


def test_every_cell_is_reported(folders: dict[str, Path], whole: Path, plain: Any, tokenizer: Any) -> None:
    report = EvaluationReport.model_validate_json((whole / RESULTS).read_text())
    assert [cell.key for cell in report.cells] == [
        (model, task, length) for model in ("teacher", "lawcat") for task in ("passkey", "recall", "stories") for length in LENGTHS
    ]
    models = {"teacher": plain, "lawcat": composer.load(folders["lawcat"])}
    for name, model in models.items():
        scores = [sample.score for sample in score_cell(model, tokenizer, Recall(samples=5), 128, batch_tokens=600)]
        assert report.cell(name, "recall", 128).mean == pytest.approx(sum(scores) / 5)
    assert report.cell("teacher", "passkey", 128).mean == 1.0
    assert all(cell.samples == 5 and cell.failure is None for cell in report.cells)
    assert report.cell("teacher", "stories", 300).by_position[-1].end == 300
    assert sum(part.samples for part in report.cell("teacher", "passkey", 300).by_depth) == 5
    assert len((whole / SAMPLES).read_text().splitlines()) == 60


def test_results_contain_all_settings(whole: Path) -> None:
    setting = json.loads((whole / RESULTS).read_text())["setting"]
    assert (setting["lengths"], setting["samples"], setting["seed"], setting["device"]) == (LENGTHS, 5, 0, "cpu")
    assert {"torch", "transformers"} <= setting["versions"].keys()
    assert [task["options"]["samples"] for task in setting["tasks"]] == [5, 5, 5]
    assert setting["models"][0]["reference"] == str(TEACHER)


def test_pictures_and_tables_are_written_beside_the_report(whole: Path) -> None:
    assert {path.name for path in whole.iterdir()} == {RUN, SAMPLES, RESULTS, TABLE, "plots"}
    assert {path.name for path in (whole / "plots").iterdir()} == {
        "accuracy-passkey.png",
        "accuracy-recall.png",
        "depth-passkey.png",
        "loss-stories.png",
        "position-stories.png",
    }


def test_without_a_folder_nothing_is_written(
    folders: dict[str, Path], whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    report = run(folders)
    assert list(tmp_path.iterdir()) == []
    assert timeless(report.model_dump(mode="json")) == results(whole)[0]


@pytest.mark.parametrize("number", [7, 34])
def test_killed_evaluations_resume_to_the_same_results(
    folders: dict[str, Path], whole: Path, tmp_path: Path, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run is killed between two lines of a batch, with half of the next line on disk."""
    out, process = tmp_path / "out", os.fork()
    if not process:
        try:
            killed_after(number, out)
            run(folders, out)
        finally:
            os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == -signal.SIGKILL
    assert len((out / SAMPLES).read_bytes().split(b"\n")) == number + 1
    assert not (out / RESULTS).exists()
    loaded = watch_loading(monkeypatch)
    run(folders, out)
    assert results(out) == results(whole)
    assert loaded == (["lawcat"] if number > 30 else ["teacher", "lawcat"])


def killed_after(number: int, out: Path) -> None:
    original, count = ScoreLog.add, 0

    def add(self: ScoreLog, *arguments: Any) -> None:
        nonlocal count
        if count == number:
            with (out / SAMPLES).open("a") as stream:
                stream.write('{"model": "teach')
            os.kill(os.getpid(), signal.SIGKILL)
        original(self, *arguments)
        count += 1

    ScoreLog.add = add


def watch_loading(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    original, loaded = Subject.load, []

    def load(self: Subject, *arguments: Any) -> Any:
        loaded.append(self.label)
        return original(self, *arguments)

    monkeypatch.setattr(Subject, "load", load)
    return loaded


def test_finished_cells_are_not_computed_again(
    folders: dict[str, Path], whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = shutil.copytree(whole, tmp_path / "out")
    (out / RESULTS).unlink()
    loaded = watch_loading(monkeypatch)
    run(folders, out, batch_tokens=77)
    assert loaded == []
    again, before = results(out), results(whole)
    assert again[0].pop("batch_tokens") == 77
    assert before[0].pop("batch_tokens") == 600
    assert again == before


def test_other_settings_are_refused_without_force(folders: dict[str, Path], whole: Path, tmp_path: Path) -> None:
    out = shutil.copytree(whole, tmp_path / "out")
    with pytest.raises(EvaluationError, match=r"\n  samples: was 5, now 4\n"):
        run(folders, out, samples=4)
    assert results(out) == results(whole)
    run(folders, out, samples=4, force=True)
    assert len((out / SAMPLES).read_text().splitlines()) == 48


def test_cells_without_memory_are_recorded_and_retried(
    folders: dict[str, Path], whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cell without memory is recorded, other cells are scored, and it is tried again in the next call."""
    original = Subject.load

    def load(self: Subject, *arguments: Any) -> Any:
        model = original(self, *arguments)

        def hook(_module: Any, _inputs: Any, named: dict[str, Any]) -> None:
            if named["input_ids"].shape[1] > 200:
                raise torch.OutOfMemoryError("CUDA out of memory.")

        model.model.register_forward_pre_hook(hook, with_kwargs=True)
        return model

    with monkeypatch.context() as patch:
        patch.setattr(Subject, "load", load)
        report = run(folders, tmp_path)
    for cell in report.cells:
        assert (cell.mean is None, cell.failure) == ((True, "out of memory") if cell.length == 300 else (False, None))
    assert "| teacher | 1.000 [0.566, 1.000] | out of memory |" in (tmp_path / TABLE).read_text()
    run(folders, tmp_path)
    assert results(tmp_path)[0] == results(whole)[0]


def test_progress_reports_all_samples_before_the_first_score(folders: dict[str, Path]) -> None:
    seen: list[EvaluationProgress] = []
    run(folders, watch=seen.append)
    made = [progress for progress in seen if progress.making]
    assert seen[: len(made)] == made, "first all samples are made"
    assert all(1 <= progress.done <= progress.total for progress in made)
    seen = seen[len(made) :]
    assert [progress.done for progress in seen] == sorted(progress.done for progress in seen)
    assert (seen[0].done, seen[-1].done, {progress.total for progress in seen}) == (0, 60, {60})
    assert [(progress.model, progress.task, progress.length) for progress in (seen[0], seen[-1])] == [
        ("teacher", "passkey", 128),
        ("lawcat", "stories", 300),
    ]


def learned(folder: Path) -> Path:
    trunk = {"width": 32, "layers": 2, "heads": 4, "vocabulary": 507, "embedding": "learned", "length": 128}
    spec = {"compose": 1, "name": "learned", "head": {"position": "none", "memory": ["full"]}, "trunk": trunk}
    composer.build_folder(spec, out=folder, fresh=True, tokenizer=TEACHER)
    return folder


REFUSED: dict[str, tuple[Callable[[Path], Sequence[Any]], list[str], list[int], dict[str, Any], type[ComposerError], str]] = {
    "no tasks": (lambda _: [TEACHER], [], [64], {}, EvaluationError, "Name tasks"),
    "no lengths": (lambda _: [TEACHER], ["recall"], [], {}, EvaluationError, "--lengths"),
    "no task": (lambda _: [TEACHER], ["recal"], [64], {}, EvaluationError, 'did you mean "recall"'),
    "no model": (lambda folder: [folder / "no"], ["recall"], [64], {}, SourceError, "no"),
    "too short": (lambda _: [TEACHER], ["stories,recall"], [66, 64], {}, TaskError, "needs at least 67 tokens, not 66"),
    "words": (lambda _: [TEACHER], ["niah-single-1"], [512], {}, TaskError, "The tokenizer cannot write"),
    "short text": (
        lambda _: [TEACHER],
        ["perplexity"],
        [9998, 9999],
        {"text": TEACHER / "README.md"},
        TaskError,
        "too few for one window of 9,999",
    ),
    "no haystack": (
        lambda _: [TEACHER],
        ["niah-single-2"],
        [512],
        {"haystack": Path("no.txt")},
        TaskError,
        "The tokenizer cannot write|no.txt",
    ),
    "no device": (lambda _: [TEACHER], ["recall"], [128], {"device": "abacus"}, ComposerError, 'no device "abacus"'),
    "no samples": (
        lambda _: [TEACHER],
        ["recall"],
        [128],
        {"samples": 0},
        EvaluationError,
        "--samples: expected a whole number of at least 1, got 0",
    ),
    "no batch": (
        lambda _: [TEACHER],
        ["recall"],
        [128],
        {"batch_tokens": 0},
        EvaluationError,
        "--batch-tokens: expected a whole number of at least 1, got 0",
    ),
    "a seed": (
        lambda _: [TEACHER],
        ["recall"],
        [128],
        {"seed": -1},
        EvaluationError,
        "--seed: expected a whole number of at least 0, got -1",
    ),
    "positions": (
        lambda folder: [learned(folder / "learned")],
        ["recall,pairs=4"],
        [129],
        {},
        EvaluationError,
        "has learned 128 positions, too few for 129 tokens: the largest possible length is 128",
    ),
    "positions to write": (
        lambda folder: [learned(folder / "learned")],
        ["passkey"],
        [121],
        {},
        EvaluationError,
        "too few for 121 tokens, with 8 more for what is written: the largest possible length is 120",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_invalid_requests_are_refused_before_loading_or_writing(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    models, tasks, lengths, options, kind, message = REFUSED[name]
    loaded = watch_loading(monkeypatch)
    with pytest.raises(kind, match=message):
        evaluate(models(tmp_path), tasks, lengths, EvaluationOptions(out=tmp_path / "out", **({"samples": 3} | options)))
    assert loaded == []
    assert not (tmp_path / "out").exists()


def test_lengths_are_bounded_by_learned_positions(tmp_path: Path) -> None:
    report = evaluate([learned(tmp_path / "learned")], ["passkey", "recall,pairs=4"], [120], EvaluationOptions(samples=2))
    assert [cell.failure for cell in report.cells] == [None, None]


def test_changed_texts_are_refused(tmp_path: Path, book: Path) -> None:
    text = shutil.copy(book, tmp_path / "text.txt")
    options = EvaluationOptions(out=tmp_path / "out", text=text, samples=2)
    evaluate([TEACHER], ["perplexity"], [64], options)
    text.write_text(text.read_text() + "the end")
    with pytest.raises(EvaluationError, match=r"tasks perplexity\.files\.text/text\.txt: was [0-9a-f]{64}"):
        evaluate([TEACHER], ["perplexity"], [64], options)


def test_models_are_scored_in_the_requested_dtype(folders: dict[str, Path]) -> None:
    report = evaluate(
        {"a": TEACHER, "b": folders["softmax"]}, ["recall,pairs=4"], [64], EvaluationOptions(samples=2, dtype="float64")
    )
    assert {model.dtype for model in report.setting.models} == {"float64"}
    assert report.cell("a", "recall,pairs=4", 64).mean == report.cell("b", "recall,pairs=4", 64).mean
