"""Locks between processes: an advisory lock on a file that exists only while it is held.

The system releases the lock when its process ends, however it ends.
"""

from __future__ import annotations

import errno
import os
import secrets
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from composer.errors import ComposerError
from composer.files import failing_as
from composer.notices import warn_user
from converters.bounded import reason

_unguarded: set[int] = set()
"""Devices of file systems without locks, for which the warning has been printed."""


def beside(path: Path) -> Path:
    """The path of the lock for a file or a folder that is created, or replaced, as a whole."""
    return path.with_name(f".{path.name}.lock")


def inside(folder: Path) -> Path:
    """The path of the lock for a folder in which files are written."""
    return folder / ".lock"


@contextmanager
def exclusive_lock(lock: Path, refusal: ComposerError | None) -> Iterator[bool]:
    """Holds the lock for the block. Gives False where the file system has no locks, with a warning on stderr, once.

    refusal: raised if another process holds it; None waits for it instead. Raises OSError if the file cannot be created.
    """
    descriptor, guarded = _locked(lock, refusal)
    try:
        yield guarded
    finally:
        with suppress(OSError):
            lock.unlink()  # while it is held, so that a process that waits for it sees that the file is gone
        os.close(descriptor)


@contextmanager
def working_in(folder: Path, refusal: type[ComposerError], busy: str) -> Iterator[None]:
    """Makes a folder that results are written into, and holds its lock for the block. busy: how the message of a held one begins.

    Raises ``refusal`` where it is a file, cannot be written to, or is held.
    """
    check_no_file(folder, refusal)
    held_by_another = refusal(f"{busy} {folder}. Wait until it has ended, or choose another --out.")
    with ExitStack() as held:
        with failing_as(refusal, f"{folder} cannot be written to", "Choose another --out."):
            folder.mkdir(parents=True, exist_ok=True)
            held.enter_context(exclusive_lock(inside(folder), held_by_another))
        yield


def check_no_file(folder: Path, refusal: type[ComposerError]) -> None:
    """Raises ``refusal`` where a file stands in the place of a folder that results are written into."""
    if folder.exists() and not folder.is_dir():
        raise refusal(f"{folder} is a file, and results would stand there. Move it away, or choose another --out.")


def say_if_unguarded(folder: Path) -> None:
    """Prints the warning, if it is due, before other processes lock files there. Raises OSError if the folder is not writable."""
    with exclusive_lock(folder / f".{secrets.token_hex(4)}.lock", None):
        pass


def say_nothing(folder: Path) -> None:
    """Suppresses the warning in this process: its parent has printed it."""
    _unguarded.add(folder.stat().st_dev)


def _locked(lock: Path, refusal: ComposerError | None) -> tuple[int, bool]:
    """Opens and locks the file: its descriptor, and whether it is locked."""
    while True:
        descriptor = os.open(lock, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            _lock(descriptor, wait=refusal is None)
            if _stands_at(lock, descriptor):
                return descriptor, True
        except BlockingIOError:
            os.close(descriptor)
            assert refusal is not None, "without a refusal the call waits"
            raise refusal from None
        except OSError as error:
            _say(lock.parent, os.fstat(descriptor).st_dev, error)
            return descriptor, False
        except BaseException:  # Ctrl-C while it waits
            os.close(descriptor)
            raise
        os.close(descriptor)


def _lock(descriptor: int, *, wait: bool) -> None:
    """Raises BlockingIOError if it is locked already, and OSError if the file system has no locks."""
    if os.name != "posix":
        raise OSError(errno.ENOSYS, "none on this system")
    import fcntl

    fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))


def _stands_at(path: Path, descriptor: int) -> bool:
    """Whether the open file is still the one at this path: the process that held the lock removes it."""
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _say(folder: Path, device: int, error: OSError) -> None:
    if device not in _unguarded:
        _unguarded.add(device)
        warn_user(f"Nothing guards {folder} against a second run: its file system has no locks ({reason(error)}).")
