"""Of several processes one prints results, progress and mistakes. A mistake ends all with exit code 2."""

from __future__ import annotations

import errno
import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
import typer
from matplotlib.figure import Figure

from composer.cli.main import main
from composer.errors import TrainingError
from composer.training import checkpoint, screen
from composer.training.distill import distill
from composer.training.journal import Board
from composer.training.run import TrainingOptions
from composer.training.student import read_student
from tests.checkpoints import fingerprint
from tests.composer.training.processes import several

MISTAKE = 2
MISTAKES: dict[str, tuple[list[str], str]] = {
    "diverges": (["--stage", "finetune", "--set", "recipe.finetune.lr=1e30"], "Learn more slowly"),
    "no such file": (["--held-out", "missing.jsonl"], "missing.jsonl"),
    "streamed": (["--stage", "transfer", "--stream"], "--stream is for one process, and torchrun has started 2"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_reported_once(
    student: Path, texts: Path, tmp_path: Path, mistake: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All processes end with exit code 2, also in the middle of training."""
    arguments, message = MISTAKES[mistake]
    monkeypatch.setattr("sys.argv", ["compose", "distill", str(student), "--data", str(texts), "-o", "out", *arguments])
    monkeypatch.chdir(tmp_path)
    before = fingerprint(student)
    assert several(2, lambda rank: main(), tmp_path / "printed") == [MISTAKE, MISTAKE]
    printed = (tmp_path / "printed").read_text()
    assert printed.count(message) == 1, printed
    assert "Traceback" not in printed
    assert not (tmp_path / "out").exists()
    assert fingerprint(student) == before


def test_mistakes_are_reported_once_as_json(student: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["compose", "distill", str(student), "--data", "missing.txt", "-o", "out", "--json"])
    monkeypatch.chdir(tmp_path)
    assert several(2, lambda rank: main(), tmp_path / "printed") == [MISTAKE, MISTAKE]
    printed = (tmp_path / "printed").read_text()
    (mistake,) = json.loads(printed[printed.index("{") :])["mistakes"]
    assert "missing.txt" in mistake["message"]


def test_only_the_first_process_prints(student: Path, texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    quick = [word for stage in ("transfer", "finetune") for word in ("--set", f"recipe.{stage}.steps=1")]
    monkeypatch.setattr("sys.argv", ["compose", "distill", str(student), "--data", str(texts), "-o", "out", *quick])
    monkeypatch.chdir(tmp_path)
    assert several(2, lambda rank: main(), tmp_path / "printed") == [0, 0]
    printed = (tmp_path / "printed").read_text()
    for line in ("Distilled out", "transfer  1/1", "finetune  1/1", "Held-out loss"):
        assert printed.count(line) == 1, printed
    assert "Warning" not in printed


def full(*arguments: Any, **options: Any) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize(
    ("owner", "name", "message"),
    [
        (checkpoint, "_complete", "No space left on device. No earlier checkpoint exists"),
        (Board, "write", "The log in out.run could not be written: No space left on device. Free some space"),
        (Figure, "savefig", "The curve in out.run could not be written: No space left on device. Free some space"),
    ],
)
def test_full_disks_are_reported_once(
    student: Path, texts: Path, tmp_path: Path, owner: Any, name: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the first process has the full disk, and the run can continue."""
    options = ["--stage", "transfer", "--set", "recipe.transfer.steps=1", "--share", "0"]
    monkeypatch.setattr("sys.argv", ["compose", "distill", str(student), "--data", str(texts), "-o", "out", *options])
    monkeypatch.setattr(owner, name, full)
    monkeypatch.chdir(tmp_path)
    assert several(2, lambda rank: main(), tmp_path / "printed") == [MISTAKE, MISTAKE]
    printed = (tmp_path / "printed").read_text()
    assert printed.count("could not be written") == printed.count(message) == 1, printed
    assert "Traceback" not in printed
    monkeypatch.undo()
    again = TrainingOptions(data=[str(texts)], share=0.0, resume=True)
    assert distill(read_student(student, "recipe.transfer.steps=1"), tmp_path / "out", again, which="transfer").stages[0].steps == 1


def test_mistakes_of_another_process_are_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first process ends although it has no error."""
    monkeypatch.setattr(screen, "PATIENCE", 0.3)

    def act(rank: int) -> None:
        with screen.report_once():
            if rank == 1:
                raise TrainingError("only here")
            time.sleep(1.0)

    def command(rank: int) -> None:
        try:
            act(rank)
        except typer.Exit as leaving:
            raise SystemExit(leaving.exit_code) from leaving

    assert several(2, command, tmp_path / "printed") == [0, MISTAKE]
    assert (tmp_path / "printed").read_text().count("only here") == 1
