"""A lock is exclusive until it is released or its process ends. Without lock support this is reported."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from composer.errors import TrainingError
from composer.system import locks
from composer.system.locks import beside, exclusive_lock, inside, suppress_warning, warn_if_unguarded
from tests.composer.training.processes import ending, forked

BUSY = TrainingError("Another run is at it.")


def test_a_lock_has_one_holder(tmp_path: Path) -> None:
    """Nothing of the lock is left afterwards."""
    lock = beside(tmp_path / "out")
    for _ in range(2):
        with exclusive_lock(lock, BUSY) as guarded:
            assert guarded
            with pytest.raises(TrainingError, match=r"^Another run is at it\.$"), exclusive_lock(lock, BUSY):
                pass
            with exclusive_lock(inside(tmp_path), BUSY):
                assert sorted(path.name for path in tmp_path.iterdir()) == [".lock", ".out.lock"]
        assert list(tmp_path.iterdir()) == []
    with pytest.raises(FileNotFoundError), exclusive_lock(tmp_path / "no" / "folder", BUSY):
        pass


def test_errors_release_the_lock(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="mine"), exclusive_lock(inside(tmp_path), BUSY):
        raise ValueError("mine")
    assert list(tmp_path.iterdir()) == []


def test_killed_processes_release_the_lock(tmp_path: Path) -> None:
    lock, begun = inside(tmp_path), tmp_path / "begun"

    def child() -> None:
        with exclusive_lock(lock, BUSY):
            begun.touch()
            time.sleep(60)

    process = forked(child)
    while not begun.exists():
        time.sleep(0.01)
    with pytest.raises(TrainingError, match="Another run"), exclusive_lock(lock, BUSY):
        pass
    os.kill(process, signal.SIGKILL)
    assert ending(process) == -signal.SIGKILL
    with exclusive_lock(lock, BUSY):
        pass
    assert list(tmp_path.iterdir()) == [begun]


def test_many_waiting_processes_hold_the_lock_one_by_one(tmp_path: Path) -> None:
    """This holds also while earlier holders remove the lock file that others have already opened."""
    turns, processes = 20, 4

    def child() -> None:
        for _ in range(turns):
            with exclusive_lock(inside(tmp_path), None):
                os.close(os.open(tmp_path / "here", os.O_CREAT | os.O_EXCL))
                (tmp_path / "here").unlink()
                with (tmp_path / "taken").open("a") as stream:
                    stream.write(".")

    started = [forked(child) for _ in range(processes)]
    assert [ending(process) for process in started] == [0] * processes
    assert [path.name for path in tmp_path.iterdir()] == ["taken"]
    assert (tmp_path / "taken").read_text() == "." * turns * processes


@pytest.fixture
def unlockable(monkeypatch: pytest.MonkeyPatch, request: Any) -> None:
    def flock(*_: Any) -> None:
        raise OSError(request.param, os.strerror(request.param))

    monkeypatch.setattr(fcntl, "flock", flock)
    monkeypatch.setattr(locks, "_unguarded", set())


KINDS = pytest.mark.parametrize("unlockable", [errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EBADF], indirect=True)


@KINDS
@pytest.mark.parametrize("refusal", [BUSY, None])
@pytest.mark.usefixtures("unlockable")
def test_file_systems_without_locks_give_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, refusal: TrainingError | None
) -> None:
    """Work continues, with one warning that nothing guards the folder."""
    warn_if_unguarded(tmp_path)
    for _ in range(2):
        with exclusive_lock(inside(tmp_path), refusal) as guarded, exclusive_lock(inside(tmp_path), refusal) as also:
            assert (guarded, also) == (False, False)
    assert list(tmp_path.iterdir()) == []
    (warning,) = caplog.messages
    assert warning.startswith(f"Nothing guards {tmp_path} against a second run: its file system has no locks (")


@pytest.mark.parametrize("unlockable", [errno.ENOLCK], indirect=True)
@pytest.mark.usefixtures("unlockable")
def test_processes_that_do_not_print_give_no_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    suppress_warning(tmp_path)
    with exclusive_lock(inside(tmp_path), BUSY):
        pass
    assert caplog.messages == []
