"""Records out of files and of data sets of the Hub, one after another, as they are stored; of plain text the whole file, its
paragraphs, or its lines.
"""

from __future__ import annotations

import glob
import os
import shlex
from collections.abc import Iterator
from io import TextIOWrapper
from itertools import chain, islice
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from composer.data.hub import read_hub
from composer.data.parquet import read_parquet
from composer.data.references import HUB, FileData, HubData, tasks
from composer.data.streams import GZIP, MOST_LINE, lines_of, open_unpacked, read_table, suffix_of, too_long
from composer.errors import DataError, first_line
from composer.spec.places import brief, near_and_all
from composer.system.files import MOST_TEXT
from converters.bounded import parse_json, parse_list, reason, shorten, within

KINDS = {".jsonl": "json", ".json": "json", ".parquet": "parquet", ".txt": "text", ".csv": "csv", ".tsv": "csv"}
"""Suffixes of the files that are read, and their kinds."""
READ = f"{', '.join(KINDS)}, each but .parquet also with {GZIP} added"
MAGIC = "*?["
KNOWN = 1000
"""Number of JSON records whose columns are known before the first record is returned."""
MOST_AHEAD = 8 * 2**20
"""Characters of JSON after which no more records are read ahead for their columns; their values may need 45 times as many bytes."""
MOST_COLUMNS = 1000
"""Columns that are looked for in every record of JSON."""


class DataRecord(NamedTuple):
    """One record and its place, such as ``data.jsonl, record 3`` (from 1)."""

    place: str
    fields: dict[str, Any]


def read_records(data: FileData | HubData) -> Iterator[DataRecord]:
    """Return all records of the slice, in order. Nothing is written beside the data. Raises DataError, at the first record or
    later."""
    if isinstance(data, HubData):
        source = _number(f"{data.title} ({data.split})", map(without_filling, read_hub(data)))
    else:
        source = _file_records(data)
    return islice(source, data.skip, None if data.limit is None else data.skip + data.limit)


def files_of(data: FileData) -> tuple[Path, ...]:
    """Return the files of a reference, sorted, all of one kind. Raises DataError if there is none, or one of an unknown kind."""
    path = Path(data.path).expanduser()
    if path.is_dir():
        files = sorted(file for file in _files_below(path) if kind_of(file))
        if not files:
            raise DataError(f"{data.path} has no file that can be read: expected {READ} in it")
        _check_links(path, files)
    elif path.exists():
        files = [path]
    elif any(sign in data.path for sign in MAGIC):
        files = sorted(Path(file) for file in glob.glob(str(path), recursive=True) if not os.path.isdir(file))
        if not files:
            raise DataError(
                f"no file fits the pattern {brief(data.path)}; look at what is there: ls {shlex.quote(str(path.parent))}"
            )
        _check_links(next(parent for parent in path.parents if not any(sign in str(parent) for sign in MAGIC)), files)
    else:
        raise DataError(_missing(data.path, path))
    other = [file for file in files if not kind_of(file)]
    if other:
        raise DataError(f'{other[0]}: files that end in "{other[0].suffix}" are not read; expected {READ}')
    kinds = sorted({kind_of(file) for file in files})
    if len(kinds) > 1:
        raise DataError(
            f"{data.path} holds files of several kinds ({', '.join(kinds)}). Name one kind: {data.path}/*{files[0].suffix}"
        )
    if data.by is not None and kinds != ["text"]:
        raise DataError(f"{data.path},by={data.by}: `by` is for plain text (.txt); the records of {kinds[0]} files are documents")
    return tuple(files)


def kind_of(file: Path) -> str:
    """Return the kind of a file by its name, one of KINDS; empty where no such file is read."""
    kind = KINDS.get(suffix_of(file), "")
    return "" if kind == "parquet" and file.suffix.lower() == GZIP else kind


def _files_below(folder: Path) -> Iterator[Path]:
    """Everything in a folder that is no folder, links and pipes included. Raises DataError if a folder cannot be listed."""

    def refuse(error: OSError) -> None:
        raise DataError(f"{shorten(str(error.filename), 500)} cannot be listed: {reason(error)}") from error

    for parent, _, names in os.walk(folder, onerror=refuse):
        yield from (Path(parent, name) for name in names)


def _check_links(folder: Path, files: list[Path]) -> None:
    """Raise DataError for a link out of the folder: whoever made the folder would choose what else is read."""
    for file in files:
        try:
            within(folder, str(file.relative_to(folder)))
        except OSError as error:
            raise DataError(f"{shorten(str(file), 500)} cannot be read: {reason(error)}") from error


def _missing(reference: str, path: Path) -> str:
    try:
        beside = [str(Path(reference).parent / name) for name in os.listdir(path.parent)]
    except OSError:  # there is no such folder, either
        beside = []
    guess = near_and_all(reference, (*beside, *tasks()), "tasks", "the tasks")
    return f"no file, folder or task {brief(reference)}{guess} Data of the Hub are {HUB}owner/name."


def _file_records(data: FileData) -> Iterator[DataRecord]:
    for file in files_of(data):
        records = _number(str(file), _read_file(file, data.by or "document"))
        first = next(records, None)
        if first is None:
            raise DataError(f"{file} has no record in it, only blank space; expected texts, or leave the file out")
        yield first
        yield from records


def _number(place: str, records: Iterator[dict[str, Any]]) -> Iterator[DataRecord]:
    for number, fields in enumerate(records, 1):
        yield DataRecord(f"{place}, record {number}", fields)


def _read_file(file: Path, unit: str) -> Iterator[dict[str, Any]]:
    """Records of one file. Blank lines and paragraphs of plain text are no records."""
    kind = kind_of(file)
    try:
        with open_unpacked(file) as stream:
            if not stream.peek(1):
                raise DataError(f"{file} is empty: it has 0 bytes; expected texts, or leave the file out")
            if kind == "json":
                is_lines = suffix_of(file) == ".jsonl"
                yield from _with_all_columns(_objects(stream, file) if is_lines else _json_records(stream, file))
            elif kind == "csv":
                yield from read_table(stream, file)
            elif kind == "text":
                yield from read_plain(stream, file, unit)
            else:
                yield from map(without_filling, read_parquet(stream, file))
    except DataError:
        raise
    except MemoryError as error:
        raise DataError(f"{file} cannot be read: there is too little memory for what it holds; split it") from error
    except UnicodeDecodeError as error:
        raise DataError(f"{file} is not UTF-8 ({error.reason} at byte {error.start}): save it as UTF-8") from error
    except OSError as error:
        raise DataError(f"{file} cannot be read: {reason(error)}") from error
    except Exception as error:  # whatever the libraries of its kind raise
        raise DataError(f"{file} cannot be read as {suffix_of(file).removeprefix('.')}: {first_line(error)}") from error


def without_filling(fields: dict[str, Any]) -> dict[str, Any]:
    """Return the columns without the None that tables store inside them for each key that another object has, as TRL does.

    A column that is None is kept, and so is a message's ``content``.
    """

    def clean(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: clean(item) for key, item in value.items() if item is not None or key == "content"}
        return [clean(item) for item in value] if isinstance(value, list) else value

    return {column: clean(value) for column, value in fields.items()}


def _with_all_columns(records: Iterator[tuple[dict[str, Any], int]]) -> Iterator[dict[str, Any]]:
    """Yield the records of JSON. Columns of earlier records, or of the first ones, that a record does not have are None.
    ``datasets`` would use the columns and types of the first megabytes for all records, read messages of several keys as text, and
    read a text such as 2024-01-01 as a date.
    """
    first: list[dict[str, Any]] = []
    buffered_bytes = 0
    for record, size in records:
        first.append(record)
        buffered_bytes += size
        if len(first) == KNOWN or buffered_bytes > MOST_AHEAD:
            break
    columns = dict.fromkeys(islice(chain.from_iterable(first), MOST_COLUMNS))
    for record in chain(first, (record for record, _ in records)):
        if len(columns) < MOST_COLUMNS:  # otherwise the time for records without a common column would grow with their square
            columns |= dict.fromkeys(islice(record, MOST_COLUMNS))
        yield columns | record


def _json_records(stream: BinaryIO, file: Path) -> Iterator[tuple[dict[str, Any], int]]:
    """Yield the records of a file that is one JSON value, and the length of each: the objects, or the texts, of a list, or one
    object. A file of JSON lines is read as such. Raises DataError."""
    pieces = iter(lambda: stream.readline(MOST_LINE), b"")
    first = next((piece for piece in map(bytes.strip, pieces) if piece), b"").removeprefix(b"\xef\xbb\xbf")
    stream.seek(0)
    if first.startswith(b"{") and _is_json(first):
        yield from _objects(stream, file)
        return
    items = parse_list(stream, MOST_LINE) if first.startswith(b"[") else iter([_read_all(stream, file)])
    for number, (record, size) in enumerate(items, 1):
        if not isinstance(record, dict | str):
            raise DataError(f'{file}, record {number}: expected an object such as {{"text": …}}, got {brief(record)}')
        yield {"text": record} if isinstance(record, str) else record, size


def _read_all(stream: BinaryIO, file: Path) -> tuple[Any, int]:
    text = stream.read(MOST_LINE + 1)
    if len(text) > MOST_LINE:
        raise DataError(f"{file} is no list and has more than {MOST_LINE:,} bytes: save it as a list, or as JSON lines, .jsonl")
    return parse_json(text, factor=0), len(text)


def _is_json(line: bytes) -> bool:
    try:
        parse_json(line, factor=0)
    except ValueError:
        return False
    return True


def _objects(stream: BinaryIO, file: Path) -> Iterator[tuple[dict[str, Any], int]]:
    """Yield the object of each line that is not blank, and the line's length. Raises DataError with the number of a line that holds
    none."""
    for number, line in enumerate(map(bytes.strip, lines_of(stream, file)), 1):
        if not line:
            continue
        try:
            record = parse_json(line, factor=0)
        except UnicodeDecodeError as error:
            raise DataError(f"{file}:{number}  is not UTF-8 ({error.reason}): save it as UTF-8") from error
        except ValueError as error:
            raise DataError(f"{file}:{number}  cannot be read as JSON ({error}); expected one object in each line") from error
        if not isinstance(record, dict):
            raise DataError(f'{file}:{number}  expected an object such as {{"text": …}}, got {brief(record)}')
        yield record, len(line)


def read_plain(stream: BinaryIO, file: Path, unit: str) -> Iterator[dict[str, str]]:
    """Yield the documents of an open file; nothing blank. Raises DataError for one that is too long, and UnicodeDecodeError."""
    text = TextIOWrapper(stream, encoding="utf-8-sig")  # which reads each end of a line as "\n"
    if unit == "document":
        content = text.read(MOST_TEXT + 1)
        if _too_long(content):
            raise too_long(str(file), file.stat().st_size)
        if content.strip():
            yield {"text": content}
        return
    lines: list[str] = []
    size = number = 0
    while line := text.readline(MOST_TEXT + 1):
        number += 1
        if _too_long(line):
            raise too_long(f"{file}:{number}")
        line = line.rstrip("\n")
        if unit == "line":
            if line.strip():
                yield {"text": line}
        elif line.strip():
            lines.append(line)
            size += len(line) + 1
            if size > MOST_TEXT:
                raise too_long(f"{file}: the paragraph that ends after line {number}")
        elif lines:
            yield {"text": "\n".join(lines)}
            lines, size = [], 0
    if lines:
        yield {"text": "\n".join(lines)}


def _too_long(text: str) -> bool:
    return len(text) > MOST_TEXT or (len(text) * 4 > MOST_TEXT and len(text.encode("utf-8", "surrogatepass")) > MOST_TEXT)
