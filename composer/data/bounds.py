"""How much a file of data may hold: bytes of one text, of one line, and of all that a compressed file unpacks to."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from composer.errors import DataError
from composer.files import MOST_TEXT

MOST_LINE = 4 * MOST_TEXT
"""Bytes of one line of JSON lines, whose escapes may need more bytes than the text."""
MOST_WHOLE = 2**30
"""Bytes of a file that can only be read as a whole, such as a list of JSON."""
MOST_UNPACKED = 2**30
"""Bytes that any compressed file may unpack to."""
MOST_RATIO = 200
"""Bytes that a larger compressed file may unpack to, for each compressed byte."""
RECORD, VALUE = 256, 8
"""Bytes that count for each record and for each of its values, beyond their contents: empty records need time, too."""


class Unpacked:
    """A count of the bytes that a compressed file has unpacked to. A file of a few bytes may unpack to terabytes."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.most = max(MOST_UNPACKED, MOST_RATIO * file.stat().st_size)
        self.size = 0

    def add(self, size: int) -> None:
        """Count some more bytes. Raises DataError beyond the limit."""
        self.size += size
        if self.size > self.most:
            raise DataError(
                f"{self.file} unpacks to more than {self.most:,} bytes, the most that is read of a compressed file of its size "
                f"({self.file.stat().st_size:,} bytes): split it, save it uncompressed, or read its first records: limit=N"
            )


def too_long(place: str, size: int | None = None) -> DataError:
    """Return the error for a text beyond ``MOST_TEXT``. size: its bytes, if known."""
    shown = "more" if size is None else f"{size:,} bytes, more"
    return DataError(f"{place} has {shown} than {MOST_TEXT:,} bytes, the most that a text may have: split it into several texts")


def lines_of(stream: BinaryIO, file: Path, most: int = MOST_LINE) -> Iterator[bytes]:
    """Yield the lines of a file, with their ends. Raises DataError for a line of more than ``most`` bytes."""
    number = 0
    while line := stream.readline(most + 1):
        number += 1
        if len(line) > most:
            raise DataError(f"{file}:{number}  has more than {most:,} bytes, the most that a line may have: split it")
        yield line
