"""Bringing an unchanged file into the output: a hard link, a clone that shares blocks, or a copy."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Literal

from converters.bounded import check_file, opened

Placement = Literal["linked", "cloned", "copied"]

_FICLONE = 0x40049409
_COPY_BLOCK = 64 * 2**20
# Errors of a file system that cannot link or clone, where a copy may still succeed.
_NOT_HERE = {
    errno.EXDEV,
    errno.EPERM,
    errno.EACCES,
    errno.EMLINK,
    errno.ENOTSUP,
    errno.EOPNOTSUPP,
    errno.ENOSYS,
    errno.EINVAL,
    errno.ENOTTY,
    errno.EBADF,
}


def place(source: Path, target: Path, *, copy: bool, moved: Callable[[int], None]) -> Placement:
    """Makes ``target`` hold what ``source`` holds, with as little writing as the file system allows, and with its time stamp.
    Raises OSError.

    copy: always copy, even where a link or a clone is possible. moved: called with the number of bytes, as they are copied.
    """
    source = source.resolve()
    check_file(source)
    if not copy and _linked(source, target):
        return "linked"
    how: Placement = "cloned" if not copy and _cloned(source, target) else "copied"
    if how == "copied":
        copy_file(source, target, moved)
    _keep_time(source, target)
    return how


def copy_file(source: Path, target: Path, moved: Callable[[int], None] = lambda _: None) -> None:
    """Copies contents, inside the kernel where it can."""
    with opened(source) as reader, target.open("xb") as writer:
        left = os.fstat(reader.fileno()).st_size
        while left > 0:
            count = _copied(reader.fileno(), writer.fileno(), min(_COPY_BLOCK, left))
            if not count:
                raise OSError(errno.EIO, f"{source} shrank while it was copied")
            left -= count
            moved(count)


def copy_files(source: Path, names: Iterable[str], folder: Path) -> None:
    """Copies files of one folder into another, never links: a later save into that would write through a link into the source."""
    for name in names:
        (folder / name).parent.mkdir(exist_ok=True)
        copy_file(source / name, folder / name)


def _keep_time(source: Path, target: Path) -> None:
    """As a link would: it identifies files that nobody has hashed, such as those of a run that goes on with a model built anew."""
    stat = source.stat()
    with suppress(OSError):  # a file system that lets nobody set it
        os.utime(target, ns=(stat.st_atime_ns, stat.st_mtime_ns))


def _linked(source: Path, target: Path) -> bool:
    try:
        os.link(source, target)
    except OSError as error:
        if error.errno not in _NOT_HERE:
            raise
        return False
    return True


def _cloned(source: Path, target: Path) -> bool:
    try:
        import fcntl
    except ImportError:
        return False
    with opened(source) as reader, target.open("xb") as writer:
        try:
            fcntl.ioctl(writer.fileno(), _FICLONE, reader.fileno())
        except OSError as error:
            target.unlink()
            if error.errno not in _NOT_HERE:
                raise
            return False
    return True


def _copied(reader: int, writer: int, count: int) -> int:
    """Copies up to ``count`` bytes from the current position of both files; the number of bytes copied."""
    if hasattr(os, "copy_file_range"):
        try:
            return os.copy_file_range(reader, writer, count)
        except OSError as error:
            if error.errno not in _NOT_HERE:
                raise
    block = memoryview(os.read(reader, count))
    written = 0
    while written < len(block):
        written += os.write(writer, block[written:])
    return written
