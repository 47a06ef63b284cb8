"""Locks between processes, by the library filelock: an advisory lock on a file that exists only while it is held.

The system releases the lock when its process ends, however it ends.
"""

from __future__ import annotations

import errno
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from composer.system.notices import warn_user
from converters.bounded import reason

NO_LOCKS = frozenset({errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOTSUP, errno.EBADF})
"""Error numbers of file systems without locks."""
_unguarded: set[int] = set()
"""Devices of file systems without locks, for which the warning has been printed."""


def beside(path: Path) -> Path:
    """Return the path of the lock for a file or a folder that is created, or replaced, as a whole."""
    return path.with_name(f".{path.name}.lock")


def inside(folder: Path) -> Path:
    """Return the path of the lock for a folder in which files are written."""
    return folder / ".lock"


@contextmanager
def exclusive_lock(lock: Path, refusal: Exception | None) -> Iterator[bool]:
    """Hold the lock for the block. Yields False where the file system has no locks, with a warning on stderr, once.

    refusal: raised if another process holds the lock; None waits for it instead. Raises OSError if the file cannot be created.
    """
    lock.parent.stat()  # filelock would create a missing folder
    file_lock = FileLock(lock, fallback_to_soft=False)
    try:
        file_lock.acquire(blocking=refusal is None)
    except Timeout:
        assert refusal is not None, "without a refusal the call waits"
        raise refusal from None
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise
        _warn_once(lock.parent, error)
    try:
        yield file_lock.is_locked
    finally:
        # Removed while it is held: a process that waits for the lock sees that the file is gone, and creates a new one.
        with suppress(OSError):
            lock.unlink()
        file_lock.release()


def warn_if_unguarded(folder: Path) -> None:
    """Print the warning, if it is due, before other processes lock files in a folder. Raises OSError if it is not writable."""
    with exclusive_lock(folder / f".{secrets.token_hex(4)}.lock", None):
        pass


def suppress_warning(folder: Path) -> None:
    """Suppress the warning in this process: its parent has printed it."""
    _unguarded.add(folder.stat().st_dev)


def _warn_once(folder: Path, error: OSError) -> None:
    device = os.stat(folder).st_dev
    if device not in _unguarded:
        _unguarded.add(device)
        warn_user(f"Nothing guards {folder} against a second run: its file system has no locks ({reason(error)}).")
