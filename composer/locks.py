"""One writer at a time, by an advisory lock on a file that stands there anyway; the system takes it back when its process ends."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from composer.errors import ComposerError


@contextmanager
def alone(path: Path, refusal: type[ComposerError]) -> Iterator[None]:
    """Inside, nobody else is alone with this file. Raises ``refusal`` where another run is, and OSError where there is no file."""
    with path.open("r+b") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise refusal(f"Another run writes to {path.parent}. Wait until it has ended, or choose another --out.") from error
        yield
