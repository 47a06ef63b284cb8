"""Who is alone with a file is so until it leaves or its process ends, however that comes about."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from composer.errors import TrainingError
from composer.locks import alone, at_work
from tests.composer.training.processes import ending, forked


def test_one_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    with pytest.raises(FileNotFoundError), alone(path, TrainingError):
        pass
    path.write_text("as it was")
    with alone(path, TrainingError):
        path.read_text()  # whoever reads it in between changes nothing
        with pytest.raises(TrainingError, match=f"^Another run writes to {tmp_path}"), alone(path, TrainingError):
            pass
    with alone(path, TrainingError):
        pass
    assert path.read_text() == "as it was"


def test_a_process_that_is_killed_leaves_nothing_behind(tmp_path: Path) -> None:
    path, inside = tmp_path / "run.json", tmp_path / "inside"
    path.touch()

    def child() -> None:
        with alone(path, TrainingError):
            inside.touch()
            time.sleep(60)

    process = forked(child)
    while not inside.exists():
        time.sleep(0.01)
    with pytest.raises(TrainingError, match="Another run writes to"), alone(path, TrainingError):
        pass
    os.kill(process, signal.SIGKILL)
    assert ending(process) == -signal.SIGKILL
    with alone(path, TrainingError):
        pass


def test_a_folder_that_somebody_is_at_work_on(tmp_path: Path) -> None:
    for _ in range(2):
        with at_work(tmp_path) as first, at_work(tmp_path) as second:
            assert (first, second) == (True, False)
    assert list(tmp_path.iterdir()) == []
