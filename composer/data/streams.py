"""Files as bytes, unpacked where they are packed, and the rows of tables in them.

Bounds limit the bytes of one text, of one line, and of all that a compressed file unpacks to.
"""

from __future__ import annotations

import csv
import gzip
import io
import zlib
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from composer.errors import DataError
from composer.spec.places import brief
from composer.system.files import MOST_TEXT, failing_as
from converters import bounded

MOST_LINE = 4 * MOST_TEXT
"""Bytes of one line of JSON lines, whose escapes may need more bytes than the text."""
MOST_CELLS = 2**20
"""Separators in a row of a table, those in quotes included."""
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
        self.max_bytes = max(MOST_UNPACKED, MOST_RATIO * file.stat().st_size)
        self.size = 0

    def add(self, size: int) -> None:
        """Count some more bytes. Raises DataError beyond the limit."""
        self.size += size
        if self.size > self.max_bytes:
            raise DataError(
                f"{self.file} unpacks to more than {self.max_bytes:,} bytes, the most that is read of a compressed file of its "
                f"size ({self.file.stat().st_size:,} bytes): split it, save it uncompressed, or read its first records: limit=N"
            )


def too_long(place: str, size: int | None = None) -> DataError:
    """Return the error for a text beyond ``MOST_TEXT``. size: its bytes, if known."""
    shown = "more" if size is None else f"{size:,} bytes, more"
    return DataError(f"{place} has {shown} than {MOST_TEXT:,} bytes, the most that a text may have: split it into several texts")


def lines_of(stream: BinaryIO, file: Path, max_bytes: int = MOST_LINE) -> Iterator[bytes]:
    """Yield the lines of a file, with their ends. Raises DataError for a line of more than ``max_bytes`` bytes."""
    number = 0
    while line := stream.readline(max_bytes + 1):
        number += 1
        if len(line) > max_bytes:
            raise DataError(f"{file}:{number}  has more than {max_bytes:,} bytes, the most that a line may have: split it")
        yield line


GZIP = ".gz"
"""The suffix of a compressed file, after that of its kind. Parquet is compressed inside."""


def suffix_of(file: Path) -> str:
    """Return the suffix that determines how a file is read, in lower case: ``.jsonl`` of ``a.jsonl`` and of ``a.jsonl.gz``."""
    name = Path(file.stem) if file.suffix.lower() == GZIP else file
    return name.suffix.lower()


class _Gunzipped(io.RawIOBase):
    """The contents of a gzip file. Raises DataError if it unpacks to more than ``Unpacked`` allows, or is damaged."""

    def __init__(self, file: Path, packed: BinaryIO) -> None:
        super().__init__()
        self.file, self.unpacked = file, Unpacked(file)
        self.stream = gzip.GzipFile(fileobj=packed)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        """Return to the start of the contents."""
        if (offset, whence) != (0, io.SEEK_SET):
            raise io.UnsupportedOperation("a gzip file is read from its start")
        self.unpacked = Unpacked(self.file)
        return self.stream.seek(0)

    def readinto(self, buffer: Any) -> int:
        try:
            content = self.stream.read(len(buffer))
        except (OSError, EOFError, zlib.error) as error:
            raise DataError(f"{self.file} cannot be unpacked as gzip: {error}") from error
        self.unpacked.add(len(content))
        buffer[: len(content)] = content
        return len(content)


@contextmanager
def open_unpacked(file: Path) -> Iterator[io.BufferedReader]:
    """Open the bytes of a regular file for the block, unpacked where it is packed. Raises DataError."""
    with failing_as(DataError, f"{file} cannot be read"), bounded.open_regular(file) as stream:
        yield io.BufferedReader(_Gunzipped(file, stream)) if file.suffix.lower() == GZIP else stream


def read_table(stream: BinaryIO, file: Path) -> Iterator[dict[str, str | None]]:
    """Yield the rows of a table whose first line names the columns; an empty cell is None.

    Raises DataError, also for a cell of more than ``MOST_TEXT`` characters, and UnicodeDecodeError.
    """
    csv.field_size_limit(MOST_TEXT)
    delimiter = "\t" if suffix_of(file) == ".tsv" else ","
    cells = size = 0

    def lines() -> Iterator[str]:
        nonlocal cells, size
        for number, line in enumerate(lines_of(stream, file)):
            cells, size = cells + line.count(delimiter.encode()), size + len(line)
            if cells > MOST_CELLS or size > MOST_LINE:
                raise DataError(
                    f"{file}:{number + 1}  ends a row of more than {MOST_CELLS:,} separators or {MOST_LINE:,} bytes: is a quote "
                    "not closed? Otherwise split the row"
                )
            yield line.decode("utf-8" if number else "utf-8-sig")

    rows = csv.reader(lines(), delimiter=delimiter, strict=True)
    try:
        columns = next((row for row in rows if row), [])
        for name, count in Counter(columns).most_common(1):
            if count > 1:
                raise DataError(f"{file}:{rows.line_num}  names the column {brief(name)} twice; rename one of them")
        for row in rows:
            cells = size = 0
            if not row:
                continue
            if len(row) != len(columns):
                raise DataError(
                    f"{file}:{rows.line_num}  has {len(row):,} cells, expected {len(columns):,}: {bounded.list_first(columns)}. "
                    "Put quotes around a cell that contains a separator, a quote or a line break"
                )
            yield {column: cell or None for column, cell in zip(columns, row, strict=True)}
    except csv.Error as error:
        raise DataError(f"{file}:{rows.line_num}  cannot be read as a table: {error}") from error
