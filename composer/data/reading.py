"""Records of files and of data sets of the Hub, one after another. Parquet and the Hub are read through ``datasets``."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import chain, islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from composer.data.references import HUB, FileData, HubData, tasks
from composer.data.streams import GZIP, opened, suffix_of, table, texts
from composer.errors import DataError
from composer.spec.places import brief, near_and_all
from converters.bounded import parse_json

KINDS = {".jsonl": "json", ".json": "json", ".parquet": "parquet", ".txt": "text", ".csv": "csv", ".tsv": "csv"}
"""Suffixes of the files that are read, and their kinds."""
READ = f"{', '.join(KINDS)}, and {GZIP} behind any of them but .parquet"
MAGIC = "*?["
KNOWN = 1000
"""Records of JSON whose columns are known before the first one is given."""


class DataRecord(NamedTuple):
    """One record and where it stands, such as ``data.jsonl, record 3`` (from 1)."""

    place: str
    fields: dict[str, Any]


def read_records(data: FileData | HubData) -> Iterator[DataRecord]:
    """All records of the slice, in order. Nothing is written beside the data. Raises DataError, at the first record or later."""
    source = _hub_records(data) if isinstance(data, HubData) else _file_records(data)
    return islice(source, data.skip, None if data.limit is None else data.skip + data.limit)


def files_of(data: FileData) -> tuple[Path, ...]:
    """The files of a reference, sorted, all of one kind. Raises DataError where there is none, or one of an unknown kind."""
    path = Path(data.path).expanduser()
    if path.is_dir():
        found = sorted(file for file in path.rglob("*") if kind_of(file) and file.is_file())
        if not found:
            raise DataError(f"{data.path} has no file that can be read: expected {READ} in it")
    elif path.exists():
        found = [path]
    elif any(sign in data.path for sign in MAGIC):
        found = sorted(Path(file) for file in glob.glob(str(path), recursive=True) if os.path.isfile(file))
        if not found:
            raise DataError(f"no file fits the pattern {brief(data.path)}; look at what is there: ls {path.parent}")
    else:
        raise DataError(_missing(data.path, path))
    other = [file for file in found if not kind_of(file)]
    if other:
        raise DataError(f'{other[0]}: files that end in "{other[0].suffix}" are not read; expected {READ}')
    kinds = sorted({kind_of(file) for file in found})
    if len(kinds) > 1:
        raise DataError(f"{data.path} holds files of several kinds ({', '.join(kinds)}); say which: {data.path}/*{found[0].suffix}")
    if data.by is not None and kinds != ["text"]:
        raise DataError(f"{data.path},by={data.by}: `by` is for plain text (.txt); the records of {kinds[0]} files are documents")
    return tuple(found)


def kind_of(file: Path) -> str:
    """Return the kind of a file by its name, one of KINDS; empty where no such file is read."""
    kind = KINDS.get(suffix_of(file), "")
    return "" if kind == "parquet" and file.suffix.lower() == GZIP else kind


def _missing(said: str, path: Path) -> str:
    try:
        beside = [str(Path(said).parent / name) for name in os.listdir(path.parent)]
    except OSError:  # there is no such folder, either
        beside = []
    guess = near_and_all(said, (*beside, *tasks()), "tasks", "the tasks")
    return f"no file, folder or task {brief(said)}{guess} Data of the Hub are {HUB}owner/name."


def _file_records(data: FileData) -> Iterator[DataRecord]:
    for file in files_of(data):
        if not file.stat().st_size:
            raise DataError(f"{file} is empty: it has 0 bytes; expected texts, or leave the file out")
        count = 0
        for fields in _read_file(file, data.by or "document"):
            count += 1
            yield DataRecord(f"{file}, record {count}", fields)
        if not count:
            raise DataError(f"{file} has no record in it, only blank space; expected texts, or leave the file out")


def _read_file(file: Path, by: str) -> Iterator[dict[str, Any]]:
    """Records of one file. Blank lines and paragraphs of plain text are no records."""
    kind = kind_of(file)
    if kind == "json":
        yield from _with_all_columns(_objects(file) if suffix_of(file) == ".jsonl" else _json_records(file))
        return
    if kind != "parquet":
        try:
            with opened(file) as stream:
                yield from table(file, stream) if kind == "csv" else texts(stream, by)
        except UnicodeDecodeError as error:
            raise DataError(f"{file} is not UTF-8 ({error.reason} at byte {error.start}): save it as UTF-8") from error
        return
    try:
        with _silent() as datasets, TemporaryDirectory() as unused:
            # Streaming keeps no second copy of the texts in a cache, and so has nothing to go stale. The cache is locked all the
            # same, which not every home's file system can.
            names = [glob.escape(str(file.absolute()))]
            stream: Any = datasets.load_dataset(kind, data_files=names, split="train", streaming=True, cache_dir=unused)
            yield from map(without_filling, stream)
    except Exception as error:  # whatever the libraries of its kind raise
        raise DataError(f"{file} cannot be read as {file.suffix.removeprefix('.')}: {_first_line(error)}") from error


def without_filling(fields: dict[str, Any]) -> dict[str, Any]:
    """Return the columns without the None that tables store inside them for each key that another object has, as TRL does.

    A column that is None stays, and so does a message's ``content``.
    """

    def cleaned(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: cleaned(item) for key, item in value.items() if item is not None or key == "content"}
        return [cleaned(item) for item in value] if isinstance(value, list) else value

    return {column: cleaned(value) for column, value in fields.items()}


def _with_all_columns(records: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """The records of JSON. What one lacks of the columns that others before it have, or among the first, is None.

    ``datasets`` would take the columns and types of the first megabytes for those of all records, messages of several keys for
    text, and a text such as 2024-01-01 for a date.
    """
    first = list(islice(records, KNOWN))
    columns = dict.fromkeys(column for record in first for column in record)
    for record in chain(first, records):
        columns |= dict.fromkeys(record)
        yield dict.fromkeys(columns) | record


def _json_records(file: Path) -> Iterator[dict[str, Any]]:
    """The records of a file that is one JSON value: the objects, or the texts, of a list, or one object. A file of JSON lines is
    read as such. Raises DataError."""
    with opened(file) as stream:
        text = stream.read()
    try:
        whole = parse_json(text)
    except UnicodeDecodeError as error:
        raise DataError(f"{file} is not UTF-8 ({error.reason} at byte {error.start}): save it as UTF-8") from error
    except ValueError as error:
        if not _is_json(text.strip().split(b"\n", 1)[0]):
            raise DataError(f"{file} cannot be read as json: {error}") from error
        yield from _objects(file)
        return
    for number, record in enumerate(whole if isinstance(whole, list) else [whole], 1):
        if not isinstance(record, dict | str):
            raise DataError(f'{file}, record {number}: expected an object such as {{"text": …}}, got {brief(record)}')
        yield {"text": record} if isinstance(record, str) else record


def _is_json(line: bytes) -> bool:
    try:
        parse_json(line)
    except ValueError:
        return False
    return True


def _objects(file: Path) -> Iterator[dict[str, Any]]:
    """The object of each line that is not blank. Raises DataError with the number of a line that holds none."""
    with opened(file) as lines:
        for number, line in enumerate(map(bytes.strip, lines), 1):
            if not line:
                continue
            try:
                record = parse_json(line)
            except UnicodeDecodeError as error:
                raise DataError(f"{file}:{number}  is not UTF-8 ({error.reason}): save it as UTF-8") from error
            except ValueError as error:
                raise DataError(f"{file}:{number}  is no JSON ({error}); expected one object in each line") from error
            if not isinstance(record, dict):
                raise DataError(f'{file}:{number}  expected an object such as {{"text": …}}, got {brief(record)}')
            yield record


def _hub_records(data: HubData) -> Iterator[DataRecord]:
    try:
        with _silent() as datasets:
            rows: Iterable[Any] = datasets.load_dataset(data.name, data.config, split=data.split, revision=data.revision)
    except Exception as error:  # the Hub's own errors, the network's, and those of the data set's files
        offline = "; HF_HUB_OFFLINE is set, so only what was downloaded before can be read" if _offline() else ""
        raise DataError(
            f"{data.title} (split {data.split}) cannot be read: {_first_line(error)}{offline}. "
            "Options: split, config (the subset), revision; a gated data set needs `hf auth login`"
        ) from error
    for number, fields in enumerate(rows, 1):
        yield DataRecord(f"{data.title} ({data.split}), record {number}", without_filling(fields))


def _offline() -> bool:
    from huggingface_hub.constants import HF_HUB_OFFLINE

    return HF_HUB_OFFLINE


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")


@contextmanager
def _silent() -> Iterator[Any]:
    """The package ``datasets``, whose log is off for the block: this module reports its errors."""
    import datasets
    from datasets.utils import logging

    before = logging.get_verbosity()
    logging.set_verbosity(logging.CRITICAL)
    try:
        yield datasets
    finally:
        logging.set_verbosity(before)
