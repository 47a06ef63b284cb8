"""Files as bytes, unpacked where they are packed, and the records of tables and of plain text in them."""

from __future__ import annotations

import csv
import gzip
import io
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from composer.errors import DataError
from composer.files import failing_as
from composer.spec.places import brief
from converters import bounded

GZIP = ".gz"
"""The suffix of a packed file, behind that of its kind. Parquet is packed inside."""
MOST_UNPACKED = 2**32
"""Bytes that a packed file may have when it is unpacked."""
MOST_CELL = 2**31 - 1
"""Characters of a cell of a table, which Python limits to 131,072 by itself."""


def suffix_of(file: Path) -> str:
    """Return the suffix that says how a file is read, in lower case: ``.jsonl`` of ``a.jsonl`` and of ``a.jsonl.gz``."""
    name = Path(file.stem) if file.suffix.lower() == GZIP else file
    return name.suffix.lower()


class _Unpacked(io.RawIOBase):
    """The contents of a packed file, up to MOST_UNPACKED bytes. Raises DataError where there are more, or where it is damaged."""

    def __init__(self, file: Path, packed: BinaryIO) -> None:
        super().__init__()
        self.file, self.count = file, 0
        self.stream = gzip.GzipFile(fileobj=packed)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        try:
            content = self.stream.read(len(buffer))
        except (OSError, EOFError, zlib.error) as error:
            raise DataError(f"{self.file} cannot be unpacked as gzip: {error}") from error
        self.count += len(content)
        if self.count > MOST_UNPACKED:
            raise DataError(
                f"{self.file} has more than {MOST_UNPACKED:,} bytes when it is unpacked, the most that are read of a packed file: "
                "unpack it with gunzip"
            )
        buffer[: len(content)] = content
        return len(content)


@contextmanager
def opened(file: Path) -> Iterator[BinaryIO]:
    """Open the bytes of a file for the block, unpacked where it is packed. Raises DataError."""
    with failing_as(DataError, f"{file} cannot be read"), bounded.opened(file) as stream:
        yield io.BufferedReader(_Unpacked(file, stream)) if file.suffix.lower() == GZIP else stream


def table(file: Path, stream: BinaryIO) -> Iterator[dict[str, str | None]]:
    """Yield the rows of a table whose first line names the columns; an empty cell is None. Raises DataError."""
    csv.field_size_limit(MOST_CELL)
    delimiter = "\t" if suffix_of(file) == ".tsv" else ","
    rows = csv.reader(io.TextIOWrapper(stream, encoding="utf-8-sig", newline=""), delimiter=delimiter, strict=True)
    try:
        columns = next((row for row in rows if row), [])
        twice = next((name for number, name in enumerate(columns) if name in columns[:number]), None)
        if twice is not None:
            raise DataError(f"{file}:{rows.line_num}  names the column {brief(twice)} twice; rename one of them")
        for row in rows:
            if not row:
                continue
            if len(row) != len(columns):
                raise DataError(
                    f"{file}:{rows.line_num}  has {len(row):,} cells, expected {len(columns):,}: {', '.join(columns)}. Put quotes "
                    "around a cell that contains a separator, a quote or a line break"
                )
            yield {column: cell or None for column, cell in zip(columns, row, strict=True)}
    except csv.Error as error:
        raise DataError(f"{file}:{rows.line_num}  cannot be read as a table: {error}") from error


def texts(stream: BinaryIO, by: str) -> Iterator[dict[str, str]]:
    """Yield the whole text, its lines, or runs of lines between blank ones; nothing blank."""
    if by == "document":
        text = io.StringIO(stream.read().decode("utf-8-sig"), newline=None).read()
        if text.strip():
            yield {"text": text}
        return
    lines: list[str] = []
    for line in io.TextIOWrapper(stream, encoding="utf-8-sig"):
        text = line.removesuffix("\n")
        if by == "line":
            if text.strip():
                yield {"text": text}
        elif text.strip():
            lines.append(text)
        elif lines:
            yield {"text": "\n".join(lines)}
            lines = []
    if lines:
        yield {"text": "\n".join(lines)}
