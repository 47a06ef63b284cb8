"""The inputs of a run by the contents of their files: models, tokenizers, data and tasks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import BaseModel

from blocks.part import Closed
from composer.data.reading import files_of
from composer.data.references import FileData, TaskData, parse_reference, tasks
from composer.runs.store import KEY_DIGITS, key_of
from composer.system.files import sha256
from composer.system.json_files import Count
from composer.weights.record import find_known_sha256, record_of
from converters.source import TOKENIZER, Source, small_files


class Fingerprint(Closed):
    """A model's identity. files: bytes, hash of the header and hash of the contents (or the time stamp) of each weight file."""

    config: str
    spec: str | None
    files: dict[str, tuple[Count, str, str | int]]

    def short(self) -> dict[str, Any]:
        """Return the fields as JSON, with one hash of all files."""
        files = self.model_dump(mode="json")["files"]
        return {**self.model_dump(exclude={"files"}), "config": self.config[:KEY_DIGITS], "files": key_of(files)}


def fingerprint(source: Source) -> Fingerprint:
    """Identify a model without reading its weights: by the hashes of its files if they are known, otherwise by time stamps."""
    record = record_of(source)
    return Fingerprint(
        config=source.config_sha256,
        spec=None if record is None else record.spec_hash,
        files={
            name: (shard.bytes, shard.header_sha256, find_known_sha256(source, record, name) or shard.file.stat().st_mtime_ns)
            for name, shard in source.shards.items()
        },
    )


def tokenizer_identity(folder: Path) -> dict[str, str]:
    """Return the hashes of a tokenizer's files, by name."""
    return {name: sha256(folder / name) for name in small_files(folder, TOKENIZER)}


def model_identity(source: Source) -> dict[str, Any]:
    """Return the identity of a model's weights, config and tokenizer."""
    return {**fingerprint(source).model_dump(mode="json"), "tokenizer": tokenizer_identity(source.folder)}


def data_identity(reference: str) -> dict[str, Any]:
    """Return a reference to data, with the hashes of its files. Data of the Hub have the reference alone. Raises DataError."""
    data = parse_reference(reference)
    if isinstance(data, FileData):
        files = {str(path): path for path in files_of(data)}
    elif isinstance(data, TaskData):
        files = list_named_files(tasks()[data.name].model_validate(data.options))
    else:
        files = {}
    return {"said": reference, "files": {name: sha256(path) for name, path in files.items()}}


def list_named_files(task: BaseModel) -> dict[str, Path]:
    """Return the files that a task's options name, by option and name; of a folder, its text files."""
    paths = {key: value for key in type(task).model_fields if isinstance(value := getattr(task, key), Path)}
    return {
        f"{key}/{path.name}": path
        for key, value in paths.items()
        for path in (sorted(value.glob("*.txt")) if value.is_dir() else [value])
    }
