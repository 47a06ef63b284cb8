"""Records out of Parquet files and tables of Arrow, as they are stored: text, numbers and times, in lists and structs.

A file's metadata may declare that a column holds images, audio or documents. ``datasets`` decodes such values when it reads them:
it opens the files and the addresses that they name. Nothing is decoded here. A column of any other type is not read, and a record
has an ``Unread`` in its place.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from composer.data.streams import MOST_RATIO, RECORD, VALUE, Unpacked, too_long
from composer.errors import DataError
from composer.system.files import MOST_TEXT
from converters.bounded import DEEPEST, shorten

if TYPE_CHECKING:
    from pyarrow import DataType, RecordBatch
    from pyarrow.parquet import ParquetFile

ROWS = 16
"""Records that are unpacked at once. Many records can share one text that is stored once."""
MOST_CHUNK = 64 * 2**20
"""Bytes of a column in a row group, and its values, which may be any number of times more than the bytes that are stored of it."""


class Unread:
    """A value of a type that is not read, such as an image."""

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def __repr__(self) -> str:
        return f"a value of the type {self.kind}"


def read_parquet(stream: BinaryIO, file: Path) -> Iterator[dict[str, Any]]:
    """Yield the records of an open Parquet file. Raises DataError beyond the limits of ``bounds``, and whatever pyarrow raises."""
    from pyarrow.parquet import ParquetFile

    with ParquetFile(stream, memory_map=False, pre_buffer=False) as opened:
        schema, unpacked = opened.schema_arrow, Unpacked(file)
        readable = [field.name for field in schema if is_readable(field.type)]
        if not readable:
            kinds = ", ".join(f"{shorten(field.name)}: {shorten(str(field.type))}" for field in list(schema)[:5])
            raise DataError(f"{file} has no column of text (its columns: {kinds or 'none'}); expected text, or lists of messages")
        _check_sizes(opened, readable, file)
        done = 0
        for batch in opened.iter_batches(batch_size=ROWS, columns=readable, use_threads=False):
            unpacked.add(batch.nbytes + batch.num_rows * (RECORD + VALUE * len(schema)))
            names = {field.name for field in batch.schema if is_readable(field.type)}
            others = {field.name: Unread(shorten(str(field.type))) for field in schema if field.name not in names}
            yield from records_of(batch, f"{file}, record", done, others)
            done += batch.num_rows


def records_of(batch: RecordBatch, place: str, done: int, others: dict[str, Any] | None = None) -> Iterator[dict[str, Any]]:
    """Yield the records of a batch. Raises DataError for one that is too large.

    place: what messages write before a record's number. done: the number of records before the batch. others: the values of
    columns that the batch lacks; each type that is not read is among them already, or else is added.
    """
    unread = {field.name: Unread(shorten(str(field.type))) for field in batch.schema if not is_readable(field.type)}
    chosen = batch.select([field.name for field in batch.schema if field.name not in unread])
    if chosen.nbytes > MOST_TEXT:
        for index in range(chosen.num_rows):
            if (size := chosen.slice(index, 1).nbytes) > MOST_TEXT:
                raise too_long(f"{place} {done + index + 1}", size)
    for record in chosen.to_pylist():
        yield {**(others or {}), **unread, **record}


def is_readable(kind: DataType) -> bool:
    """Whether values of this type are read: text, numbers, truth values and times, and lists and structs of them."""
    waiting = [(kind, 0)]
    while waiting:
        kind, depth = waiting.pop()
        inside = _inside(kind)
        if inside is None or depth > DEEPEST:
            return False
        waiting += [(inner, depth + 1) for inner in inside]
    return True


def _inside(kind: DataType) -> list[DataType] | None:
    """Return the types that a type is made of, empty for the smallest; None where it is not read."""
    from pyarrow import types

    if types.is_struct(kind) or types.is_map(kind):
        return (
            [kind.field(index).type for index in range(kind.num_fields)]
            if types.is_struct(kind)
            else [kind.key_type, kind.item_type]
        )
    if types.is_dictionary(kind) or types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return [kind.value_type]
    text = types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind)
    number = types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind)
    return [] if text or number or types.is_boolean(kind) or types.is_null(kind) or types.is_temporal(kind) else None


def _check_sizes(opened: ParquetFile, columns: list[str], file: Path) -> None:
    """Raise DataError if a column's metadata states many times more than what is stored, or its name is there twice."""
    name, count = Counter(opened.schema_arrow.names).most_common(1)[0]
    if count > 1:
        raise DataError(f"{file} has {count} columns of the name {shorten(name)}; expected one")
    wanted = set(columns)
    for number in range(opened.metadata.num_row_groups):
        group = opened.metadata.row_group(number)
        for chunk in map(group.column, range(group.num_columns)):
            if chunk.path_in_schema.split(".")[0] not in wanted:
                continue
            size = max(chunk.total_uncompressed_size, chunk.num_values)
            if size > max(MOST_CHUNK, MOST_RATIO * chunk.total_compressed_size):
                raise DataError(
                    f"{file}: {chunk.total_compressed_size:,} bytes of the column {shorten(chunk.path_in_schema)} unpack to "
                    f"{size:,}, more than {MOST_RATIO} times as many; expected less, or less than {MOST_CHUNK:,}"
                )
