"""One writer at a time, by an advisory lock on what stands there anyway; the system takes it back when its process ends."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from composer.errors import ComposerError


@contextmanager
def alone(path: Path, refusal: type[ComposerError]) -> Iterator[None]:
    """Inside, nobody else is alone with this file. Raises ``refusal`` where another run is, and OSError where there is no file."""
    with path.open("r+b") as stream:
        try:
            _lock(stream.fileno())
        except BlockingIOError as error:
            raise refusal(f"Another run writes to {path.parent}. Wait until it has ended, or choose another --out.") from error
        yield


@contextmanager
def at_work(folder: Path) -> Iterator[bool]:
    """Inside, a folder is marked as worked on. False: somebody else is at it, or its file system keeps no marks on folders."""
    if os.name != "posix":  # which cannot open a folder
        yield False
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        try:
            _lock(descriptor)
        except OSError:  # NFS locks nothing that is open for reading alone
            yield False
        else:
            yield True
    finally:
        os.close(descriptor)


def _lock(descriptor: int) -> None:
    """Raises BlockingIOError where it is locked already. Without a POSIX system nothing is."""
    if os.name == "posix":
        import fcntl

        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
