"""The record, ``composition.json``: what a model consists of, and how it was built and trained."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError

from blocks.part import Closed
from composer.errors import BuildError
from composer.graph.lowering import AUTO
from composer.spec.outside import StoredPart, needed_part, recorded_parts, unregistered_kind
from composer.spec.resolve import Resolved
from composer.versions import versions_of
from composer.weights.names import FileName
from composer.weights.place import Placement
from composer.weights.plan import Plan
from converters.bounded import MOST_RECORD, read_bytes, reason, shortened, within
from converters.composed import RECORD
from converters.hub import cached_sha256
from converters.shard import read_shard
from converters.source import Source, UnpackedFrom

_PACKAGES = ("attention-composer", "torch", "transformers", "safetensors")


class StoredFile(Closed):
    """A weight file as it was when the build ended.

    sha256 is None where nobody had read the contents: a file that was linked or copied without being hashed. Its size, its
    header and its time stamp are kept instead.
    """

    how: Placement | Literal["written", "rewritten"]
    origin: str | None
    """The source's file behind it, for one that was linked, cloned or copied."""
    bytes: int
    header_sha256: str
    sha256: str | None
    device: int
    inode: int
    modified_ns: int


class StoredUnpacked(Closed):
    """The quantised weights that a source was unpacked from."""

    path: str
    """The GGUF file, or the folder."""
    quantisation: str
    """Such as ``GGUF Q4_1, F32``, the type of most weights first, or ``fp8``."""
    files: dict[str, str]
    """SHA-256 of each file that was read, by name."""


class StoredSource(Closed):
    """The source of the weights. spec_hash: of the source's spec, where it is itself a student."""

    family: str
    folder: str
    repo_id: str | None
    revision: str | None
    commit: str | None
    config_sha256: str
    spec_hash: str | None
    unpacked: StoredUnpacked | None = Field(default=None, exclude_if=lambda unpacked: unpacked is None)
    """The quantised weights behind ``folder``, which is a folder of the cache; None where the source was not quantised."""


class Start(Closed):
    """How the fresh parameters of a stage started, by the names of their parts in the model."""

    calibrated: tuple[str, ...]
    """Parts whose first values were computed from the teacher's attention."""
    kept: tuple[str, ...]
    """Parts that kept their initialisation, as it does not follow from the teacher's attention."""
    seconds: float


class TrainedStage(Closed):
    """A stage of training that the weights have been through. Losses are those of held-out rows, by layer or of the model."""

    stage: str
    recipe: dict[str, Any]
    """The stage as its recipe has it."""
    data: dict[str, Any]
    """The data, as ``composer.data`` reports them."""
    teacher: str | None
    """The teacher's folder or name on the Hub; None where no stage had a teacher."""
    seed: int
    backend: str = Field(default=AUTO, exclude_if=lambda said: said == AUTO)
    """The backend whose forms ran the heads."""
    start: Start | None = Field(default=None, exclude_if=lambda start: start is None)
    """The calibration before the stage; None where all parts kept their initialisation."""
    steps: int
    tokens: int
    """Tokens of all training steps, repeated ones counted each time."""
    seconds: float
    before: dict[str, float]
    after: dict[str, float]


class SavedByTransformers(Closed):
    """A save of the model by transformers. What the user's program did with the model before that is not recorded."""

    after: str | None
    """SHA-256 of the record of the folder that the model was loaded from; None: it was built in memory."""
    tensors: int
    changed: int | None
    """Tensors whose values differ from those in that folder; None where some of those can no longer be read."""
    versions: dict[str, str]


class Record(Closed):
    """Enough to say exactly what a checkpoint is, and to check it."""

    format: Literal[1] = 1
    spec: dict[str, Any]
    """The spec as a document, after ``extends`` and overrides."""
    resolved: Resolved
    spec_hash: str
    source: StoredSource | None
    """None: it was built from nothing."""
    seed: int
    trunk: dict[str, Any]
    """As ``config.json`` has it; its dtype is that of fresh parameters."""
    plan: Plan
    files: dict[FileName, StoredFile]
    documents: dict[str, str] | None = None
    """SHA-256 of every other file of the build, by path. None: an earlier version wrote the record, and did not keep them."""
    given: dict[str, str] = Field(default_factory=dict, exclude_if=lambda files: not files)
    """SHA-256 of the files beside the source that parameters came from, by path."""
    parts: dict[str, StoredPart] = Field(default_factory=dict, exclude_if=lambda parts: not parts)
    """The origins of parts from outside, by kind."""
    untrained: tuple[str, ...] = ()
    """Parameters that had not been trained when the build ended."""
    training: tuple[TrainedStage, ...] = ()
    saved: tuple[SavedByTransformers, ...] = Field(default=(), exclude_if=lambda saves: not saves)
    """The saves by transformers since the build, in order: each saved a model that had been loaded from the one before."""
    versions: dict[str, str]


def read_record(folder: Path) -> Record | None:
    """The record of a folder; None where it has none. Raises ``BuildError`` where it is damaged."""
    path = folder / RECORD
    try:
        return Record.model_validate_json(read_bytes(within(folder, RECORD), MOST_RECORD))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise BuildError(f"{path} cannot be read: {reason(error)}.") from error
    except ValidationError as error:
        if (kind := unregistered_kind(error)) is not None:
            raise BuildError(f"{needed_part(folder, kind, recorded_parts(folder))}.") from error
        first = error.errors()[0]
        where = shortened(".".join(str(part) for part in first["loc"]))
        raise BuildError(
            f"{path} is damaged, or of another version of composer, at {where or 'its start'}: {first['msg']}."
        ) from error


def record_of(source: Source) -> Record | None:
    """The record of a source that is itself a student."""
    return read_record(source.folder) if source.is_composed else None


def stored_source(source: Source, student: Record | None) -> StoredSource:
    unpacked = source.unpacked
    return StoredSource(
        family=source.family.model_type,
        folder=str(source.folder.resolve()),
        repo_id=source.repo_id,
        revision=source.revision,
        commit=source.commit,
        config_sha256=source.config_sha256,
        spec_hash=student.spec_hash if student else None,
        unpacked=None if unpacked is None else stored_unpacked(unpacked),
    )


def stored_unpacked(unpacked: UnpackedFrom) -> StoredUnpacked:
    return StoredUnpacked(path=str(unpacked.path), quantisation=unpacked.quantisation, files=dict(unpacked.files))


def stored_file(
    path: Path, how: Placement | Literal["written", "rewritten"], *, origin: Path | None, contents: str | None
) -> StoredFile:
    """The record's entry for the file at ``path``. contents: its SHA-256, where it is known."""
    shard, stat = read_shard(path), path.stat()
    return StoredFile(
        how=how,
        origin=None if origin is None else str(origin.resolve()),
        bytes=shard.bytes,
        header_sha256=shard.header_sha256,
        sha256=contents,
        device=stat.st_dev,
        inode=stat.st_ino,
        modified_ns=stat.st_mtime_ns,
    )


def known_sha256(source: Source, student: Record | None, file: str) -> str | None:
    """The SHA-256 of a source's file where it is known: from unpacking, from the Hub's cache, or from the record of a student."""
    shard = source.shards[file]
    if source.unpacked is not None:
        return source.unpacked.weights.get(file)
    if (cached := cached_sha256(shard.file)) is not None:
        return cached
    stored = student.files.get(file) if student else None
    if stored is None or (stored.bytes, stored.header_sha256) != (shard.bytes, shard.header_sha256):
        return None
    return stored.sha256


def versions() -> dict[str, str]:
    """Versions of what took part in the build, as far as they are installed as packages."""
    return versions_of(_PACKAGES)


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def write_text(path: Path, text: str) -> None:
    """Writes a new file."""
    with path.open("x", encoding="utf-8") as stream:
        stream.write(text)
