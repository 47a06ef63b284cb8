"""With any contents of the JSON files of a run's folder, the next call continues or rejects them with a message."""

from __future__ import annotations

import json
import shutil
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st

import composer
from composer.ablation import ablate as ablation
from composer.ablation.ablate import ablate
from composer.evaluation.options import EvaluationOptions
from composer.evaluation.runner import evaluate
from composer.inspection.folder import SUMMARY, Summary, check_place
from composer.system.json_files import write_state
from composer.training import journal
from tests.composer.ablation.variants import request_for, write_spec
from tests.composer.training.runs import make_student, make_teacher, run, write_texts
from tests.composer.training.stages import StoppedError, stop_at
from tests.fuzz.mutations import CUTS, EDITS, as_json, cut, edited
from tests.fuzz.outcomes import fuzz, outcome

HOW = st.tuples(st.just("tree"), EDITS) | st.tuples(st.just("bytes"), CUTS)
EXAMPLES = st.tuples(st.integers(0, 2**16), st.integers(0, 2**16), HOW)
"""Which of a folder's JSON files is damaged, which of its lines, and how."""
TASK, LENGTH, SAMPLES = "mqar,pairs=2", 12, 3
ABLATION, EVALUATION, RUN, INSPECTION = "ablation", "evaluation", "student.run", "inspection"


@pytest.fixture(autouse=True)
def _without_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip pictures, which take most of the time. ``test_curves_of_damaged_logs_are_drawn_or_refused`` draws one."""
    monkeypatch.setattr(ablation, "draw_all", lambda *_: None)
    monkeypatch.setattr("composer.evaluation.pictures.draw", lambda *_: None)
    monkeypatch.setattr("composer.training.run.draw", lambda *_: None)


@cache
def sound() -> Path:
    """A teacher, texts, a student, and the folders of a finished ablation, a finished evaluation and a stopped training run."""
    folder = Path(tempfile.mkdtemp())
    make_teacher(folder / "teacher")
    write_texts(folder / "texts.jsonl", 24)
    make_student(folder / "student", folder / "teacher")
    write_spec(folder / "tiny.yaml")
    again(ABLATION, folder, folder)
    again(EVALUATION, folder, folder)
    with pytest.raises(StoppedError):
        train(folder, folder, checkpoint_seconds=0.0, watch=stop_at(2))
    pictures = ("norms", "weights-1")
    empty: dict[str, Any] = {"found_at": (), "queries": (), "bin": 1, "heads": (), "answered": None, "stream": None}
    named = {"model": "m", "teacher": None, "spec": "s", "text": "t", "tokens": ("a",), "answers": (), "teacher_answered": None}
    write_state(folder / INSPECTION / SUMMARY, Summary(**named, **empty, pictures=pictures))
    return folder


def train(inputs: Path, outputs: Path, **options: Any) -> Any:
    """Train the student, from the checkpoint in ``outputs`` if the options say so."""
    return run(inputs / "student", outputs / "out", inputs / "texts.jsonl", "recipe.transfer.steps=3", which="transfer", **options)


def again(what: str, inputs: Path, outputs: Path) -> Any:
    """Start the command of a folder, or continue it."""
    if what == ABLATION:
        request = request_for(inputs / "teacher", inputs / "texts.jsonl", tasks=(TASK,), lengths=(LENGTH,), samples=SAMPLES)
        return ablate([str(inputs / "tiny.yaml")], request, outputs / ABLATION)
    if what == EVALUATION:
        return evaluate([inputs / "teacher"], [TASK], [LENGTH], EvaluationOptions(samples=SAMPLES, out=outputs / EVALUATION))
    return train(inputs, outputs, resume=True)


def damaged(text: bytes, line: int, how: tuple[str, Any], *, is_log: bool) -> bytes:
    """Return the text of a JSON file with random changes, or of a log with one changed line."""
    kind, changes = how

    def change(own: bytes) -> bytes:
        return as_json(edited(json.loads(own), changes)) if kind == "tree" else cut(own, changes)

    if not is_log:
        return change(text)
    lines = text.splitlines()
    lines[line % len(lines)] = change(lines[line % len(lines)])
    return b"\n".join([*lines, b""])


def with_damage(folder: Path, name: str, example: Any) -> tuple[Path, str]:
    """Return a copy of a valid folder with one damaged JSON file, and that file's name."""
    place, line, how = example
    shutil.rmtree(folder / name, ignore_errors=True)
    shutil.copytree(sound() / name, folder / name, symlinks=True)
    files = sorted(path for path in (folder / name).rglob("*.json*") if path.is_file() and not path.is_symlink())
    path = files[place % len(files)]
    path.write_bytes(damaged(path.read_bytes(), line, how, is_log=path.suffix == ".jsonl"))
    return folder / name, str(path.relative_to(folder / name))


@fuzz(EXAMPLES, examples=12)
def test_damaged_ablations_are_continued_or_refused(example: Any, folder: Path) -> None:
    with_damage(folder, ABLATION, example)
    report = outcome(lambda: again(ABLATION, sound(), folder))
    if report is not None:
        assert report.model_dump_json()
        assert report.view().text()


@fuzz(EXAMPLES, examples=25)
def test_damaged_evaluations_are_continued_or_refused(example: Any, folder: Path) -> None:
    with_damage(folder, EVALUATION, example)
    report = outcome(lambda: again(EVALUATION, sound(), folder))
    if report is not None:
        assert [cell.samples for cell in report.cells] == [SAMPLES]
        assert report.model_dump_json()
        assert report.view().text()


@fuzz(EXAMPLES, examples=12)
def test_damaged_training_runs_are_continued_or_refused(example: Any, folder: Path) -> None:
    shutil.rmtree(folder / "out", ignore_errors=True)
    shutil.copytree(sound() / "out.run", folder / "sound", dirs_exist_ok=True)
    run_folder, _ = with_damage(folder, "out.run", example)
    report = outcome(lambda: again(RUN, sound(), folder))
    assert (report is None) == (not (folder / "out").exists())
    assert (report is None) == run_folder.exists()
    if report is not None:
        assert [stage.steps for stage in report.stages] == [3]
        assert outcome(lambda: composer.verify(folder / "out")).ok


@fuzz(EXAMPLES, examples=60)
def test_damaged_logs_are_rewound_or_refused(example: Any, folder: Path) -> None:
    """Logs are read as a continued run reads them."""
    run_folder, _ = with_damage(folder, "out.run", example)
    outcome(lambda: journal.Journal(run_folder).rewind("transfer", 1))


@fuzz(EXAMPLES, examples=4)
def test_curves_of_damaged_logs_are_drawn_or_refused(example: Any, folder: Path) -> None:
    run_folder, _ = with_damage(folder, "out.run", example)
    outcome(lambda: journal.draw(run_folder / journal.LOG, folder / "curve.png"))


@fuzz(EXAMPLES, examples=60)
def test_damaged_inspections_are_replaceable_or_refused(example: Any, folder: Path) -> None:
    out, _ = with_damage(folder, INSPECTION, example)
    outcome(lambda: check_place(out, force=True))
