"""One at a time, by an advisory lock on a file that is there only meanwhile; the system takes it back when its process ends."""

from __future__ import annotations

import errno
import os
import secrets
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from composer.errors import ComposerError

_unguarded: set[int] = set()
"""File systems without locks, by their device, of which that has been said."""


def beside(path: Path) -> Path:
    """The lock of a file or a folder that is made, or replaced, as a whole."""
    return path.with_name(f".{path.name}.lock")


def inside(folder: Path) -> Path:
    """The lock of a folder that stays while files in it are written."""
    return folder / ".lock"


@contextmanager
def alone(lock: Path, refusal: ComposerError | None) -> Iterator[bool]:
    """Inside, nobody else has this lock. False: its file system knows no locks, which is said once, on stderr.

    refusal: raised where somebody has it; None waits. Raises OSError where the file cannot be made.
    """
    descriptor, guarded = _locked(lock, refusal)
    try:
        yield guarded
    finally:
        with suppress(OSError):
            lock.unlink()  # while it is held: whoever waits for it sees that it is gone
        os.close(descriptor)


def say_if_unguarded(folder: Path) -> None:
    """At the start of what takes its locks in other processes. Raises OSError where nothing can be written to the folder."""
    with alone(folder / f".{secrets.token_hex(4)}.lock", None):
        pass


def say_nothing(folder: Path) -> None:
    """In those other processes, before they take any."""
    _unguarded.add(folder.stat().st_dev)


def _locked(lock: Path, refusal: ComposerError | None) -> tuple[int, bool]:
    """The open file, and whether it is locked."""
    while True:
        descriptor = os.open(lock, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            _lock(descriptor, wait=refusal is None)
            if _stands_at(lock, descriptor):
                return descriptor, True
        except BlockingIOError:
            os.close(descriptor)
            assert refusal is not None, "it has not waited"
            raise refusal from None
        except OSError as error:
            _say(lock.parent, os.fstat(descriptor).st_dev, error)
            return descriptor, False
        except BaseException:  # Ctrl-C while it waits
            os.close(descriptor)
            raise
        os.close(descriptor)


def _lock(descriptor: int, *, wait: bool) -> None:
    """Raises BlockingIOError where it is locked already, and OSError where nothing can be."""
    if os.name != "posix":
        raise OSError(errno.ENOSYS, "none on this system")
    import fcntl

    fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))


def _stands_at(path: Path, descriptor: int) -> bool:
    """Whether an open file is the one of this name: another may have removed it as it left."""
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _say(folder: Path, device: int, error: OSError) -> None:
    if device not in _unguarded:
        _unguarded.add(device)
        reason = error.strerror or error
        print(f"Nothing guards {folder} against a second run: its file system has no locks ({reason}).", file=sys.stderr)
