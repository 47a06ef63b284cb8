"""A run that is killed with SIGKILL, or whose disk is full, continues from a complete checkpoint to the same bits."""

from __future__ import annotations

import errno
import os
import random
import resource
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from composer.errors import TrainingError
from composer.training import checkpoint, journal
from tests.composer.training.processes import ending, forked, killed_at
from tests.composer.training.stages import STAGES, log, run, same


@pytest.mark.parametrize(
    ("owner", "name", "number", "behind"),
    [
        (checkpoint, "_write", 3, False),
        (checkpoint, "_write", 3, True),
        (checkpoint, "sync", 6, True),
        (Path, "rename", 3, False),
        (Path, "rename", 3, True),
        (checkpoint, "_checkpoints", 3, False),
    ],
)
def test_runs_killed_while_writing_a_checkpoint_resume(
    tmp_path: Path, uninterrupted: dict[str, Any], owner: Any, name: str, number: int, behind: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def child() -> None:
        killed_at(monkeypatch, owner, name, number, behind=behind)
        run(tmp_path, STAGES["transfer"], checkpoint_seconds=0.0)

    assert ending(forked(child)) == -signal.SIGKILL
    assert (tmp_path / "transfer").is_dir()
    expected, lines = uninterrupted["transfer"]
    assert same(run(tmp_path, STAGES["transfer"], checkpoint_seconds=1e9), expected)
    assert log(tmp_path) == lines
    assert [path.name for path in (tmp_path / "transfer").iterdir()] == ["step-00000006"], "nothing half-written stays"


@pytest.mark.full  # these moments are random
def test_runs_killed_at_any_moment_resume_to_the_same_output(tmp_path: Path, uninterrupted: dict[str, Any]) -> None:
    """The run is killed again and again, with a checkpoint after every step."""
    choice, kills = random.Random(4), 0
    for _ in range(4):
        process = forked(lambda: run(tmp_path, STAGES["finetune"], checkpoint_seconds=0.0, watch=lambda _: time.sleep(0.2)))
        time.sleep(choice.uniform(0.1, 0.6))
        os.kill(process, signal.SIGKILL)
        kills += ending(process) == -signal.SIGKILL
    assert kills
    expected, lines = uninterrupted["finetune"]
    assert same(run(tmp_path, STAGES["finetune"], checkpoint_seconds=0.0), expected)
    assert log(tmp_path) == lines


@contextmanager
def small_files(most: int) -> Iterator[None]:
    """Limit the size of files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_runs_stopped_by_a_file_size_limit_resume(
    tmp_path: Path, uninterrupted: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The system refuses to write more in the middle of a file."""
    original = checkpoint._write
    count = 0

    def write(*arguments: Any) -> Any:
        nonlocal count
        count += 1
        with small_files(1024 if count == 4 else 10**9):
            return original(*arguments)

    monkeypatch.setattr(checkpoint, "_write", write)
    with pytest.raises(
        TrainingError, match="checkpoint of step 4 could not be written to .*: File too large. The previous checkpoint"
    ):
        run(tmp_path, STAGES["transfer"], checkpoint_seconds=0.0)
    assert [path.name for path in (tmp_path / "transfer").iterdir()] == ["step-00000003"]
    monkeypatch.undo()
    assert same(run(tmp_path, STAGES["transfer"], checkpoint_seconds=0.0), uninterrupted["transfer"][0])


def test_runs_stopped_by_a_full_disk_for_the_log_resume(
    tmp_path: Path, uninterrupted: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half a line is on disk, and is written again."""
    original, written = checkpoint.save, journal.Journal._write

    def save(folder: Path, step: int, *arguments: Any) -> None:
        original(folder, step, *arguments)
        if step == 3:
            monkeypatch.setattr(journal.Journal, "_write", write)

    def write(self: journal.Journal, *arguments: Any) -> None:
        with small_files((tmp_path / journal.LOG).stat().st_size + 40):
            written(self, *arguments)

    monkeypatch.setattr(checkpoint, "save", save)
    with pytest.raises(
        TrainingError, match=r"The log in .* could not be written: File too large\. Fix that, and run the same command with --resu"
    ):
        run(tmp_path, STAGES["transfer"], checkpoint_seconds=0.0)
    monkeypatch.undo()
    expected, lines = uninterrupted["transfer"]
    assert len((tmp_path / journal.LOG).read_text().splitlines()[-1]) == 40
    assert same(run(tmp_path, STAGES["transfer"], checkpoint_seconds=0.0), expected)
    assert log(tmp_path) == lines


@pytest.mark.parametrize("fault", ["before", "behind"])
def test_runs_stopped_by_a_full_disk_resume(
    tmp_path: Path, uninterrupted: dict[str, Any], fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If tensors or facts cannot be written, the run continues from the earlier checkpoint."""
    original, count = checkpoint._write, 0

    def write(*arguments: Any) -> Any:
        nonlocal count
        count += 1
        written = original(*arguments) if count < 4 or fault == "behind" else None
        if count == 4:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return written

    monkeypatch.setattr(checkpoint, "_write", write)
    with pytest.raises(
        TrainingError, match="checkpoint of step 4 could not be written to .*: No space left on device. The previous"
    ):
        run(tmp_path, STAGES["transfer"], checkpoint_seconds=0.0)
    assert [path.name for path in (tmp_path / "transfer").iterdir()] == ["step-00000003"]
    monkeypatch.undo()
    assert same(run(tmp_path, STAGES["transfer"], checkpoint_seconds=0.0), uninterrupted["transfer"][0])
