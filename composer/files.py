"""Files that are there as a whole or not at all: a kill or a full disk leaves what stood there before."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def whole(path: Path) -> Iterator[Path]:
    """Gives a name to write a file under; it gets its own once it is whole, else it is gone. Its folder is made. Raises OSError."""
    partial = path.with_name(f".{path.name}.partial")
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        yield partial
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def write_whole(path: Path, text: str) -> None:
    """Raises OSError."""
    with whole(path) as partial:
        partial.write_text(text, encoding="utf-8")
