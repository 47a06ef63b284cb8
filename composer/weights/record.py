"""The record, ``composition.json``: what a model consists of, how it was built and trained, and the files of its folder."""

from __future__ import annotations

import os
from collections.abc import Mapping
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath
from typing import Any, Literal

from pydantic import Field, ValidationError

from blocks.part import Closed
from composer.errors import BuildError
from composer.graph.lowering import AUTO
from composer.spec.external_parts import StoredPart, find_unregistered_kind, needed_part_message, read_recorded_parts
from composer.spec.resolve import Resolved
from composer.system.files import sha256
from composer.system.json_files import Digest, FileName, first_problem
from composer.system.versions import versions_of
from composer.weights.plan import Plan
from converters.bounded import MOST_RECORD, read_json_bytes, reason, within
from converters.composed import ADAPTER_CONFIG, ADAPTER_WEIGHTS, RECORD
from converters.licences import LICENCE_FILES, LicenceFields, read_card_licence
from converters.shard import Shard, read_shard
from converters.source import GENERATION_CONFIG, SINGLE, TOKENIZER, Source, small_files

CARD, CONFIG, TRAINING = "README.md", "config.json", "training"
READ = (*TOKENIZER, GENERATION_CONFIG, SINGLE, ADAPTER_CONFIG, "adapter_model.*")
"""The files that transformers finds in a folder by their names, beside config and index."""
HASHED_ANYWAY = 256 * 2**20
"""Largest size in bytes of linked files that are hashed in any case, which needs a few tenths of a second."""
Placement = Literal["linked", "copied"]
_PACKAGES = ("attention-composer", "torch", "transformers", "safetensors")


class StoredFile(Closed):
    """A weight file as it was when the build ended.

    sha256 is None where nobody had read the contents: a large file that was linked. Its size, its header and its time stamp are
    kept instead.
    """

    how: Placement | Literal["written", "rewritten"]
    origin: str | None
    """The source's file that was linked or copied."""
    bytes: int
    header_sha256: Digest
    sha256: Digest | None
    device: int
    inode: int
    modified_ns: int


class StoredUnpacked(Closed):
    """The quantised weights that a source was unpacked from."""

    path: str
    """The GGUF file, or the folder."""
    quantisation: str
    """Such as ``GGUF Q4_1, F32``, the type of most weights first, or ``fp8``."""
    files: dict[FileName, Digest]
    """SHA-256 of each file that was read, by name."""
    text_only: bool = Field(default=False, exclude_if=lambda is_text_only: not is_text_only)
    """The folder has the text decoder of the model at ``path``, whose weights are not quantised."""


class StoredLicence(Closed):
    """The licence of weights, as their source states it."""

    fields: dict[str, str | tuple[str, ...]] = Field(default_factory=dict)
    """``license``, ``license_name`` and ``license_link`` of its card."""
    files: tuple[FileName, ...] = ()
    """Files with its terms, which every folder with these weights has, too."""


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
    """The quantised weights of ``folder``, which is a folder of the cache; None if the source was not quantised."""
    licence: StoredLicence = Field(default_factory=StoredLicence)


class Solved(Closed):
    """The output projection of a layer, solved in closed form. before, after: mean squared errors on rows that were left out, as
    shares of the teacher's mean square. They are equal where the projection kept its weight, because the error would not fall."""

    layer: int
    before: float
    after: float


class Start(Closed):
    """How a student started: its parts, by their names in the model, and its output projections."""

    calibrated: tuple[str, ...]
    """Parts whose first values were computed from the teacher's attention and outputs."""
    kept: tuple[str, ...]
    """Parts that kept their initialisation, as it does not follow from the teacher's attention. Empty where only outputs were
    scaled."""
    solved: tuple[Solved, ...] = Field(default=(), exclude_if=lambda solved: not solved)
    seconds: float


class HeldOut(Closed):
    """The options that choose held-out rows. references: of --held-out. share: of the data, if there are none. rows: the largest
    number of them, if the user set one."""

    references: tuple[str, ...]
    share: float
    rows: int | None


class TrainedStage(Closed):
    """A stage of training that the weights have been through. Losses are those of held-out rows, by layer or of the model."""

    stage: str
    recipe: dict[str, Any]
    """The stage as its recipe has it."""
    data: dict[str, Any]
    """The data, as ``composer.data`` reports them."""
    held_out: HeldOut
    bfloat16: bool
    """Whether projections were computed in bfloat16."""
    teacher: str | None
    """The teacher's folder or name on the Hub; None where no stage had a teacher."""
    seed: int
    backend: str = Field(default=AUTO, exclude_if=lambda backend: backend == AUTO)
    """The backend whose forms ran the heads."""
    start: Start | None = Field(default=None, exclude_if=lambda start: start is None)
    """The calibration before the stage; None where all parts kept their initialisation."""
    steps: int
    planned: int | None = Field(default=None, exclude_if=lambda planned: planned is None)
    """The steps of the recipe, if the stage was ended at a checkpoint before (``--finish``)."""
    tokens: int
    """Tokens of all training steps, repeated ones counted each time."""
    seconds: float
    before: dict[str, float]
    after: dict[str, float]


def steps_in_words(stage: Any) -> str:
    """Return the steps of a stage, and those of its recipe where it was ended before. stage: a ``TrainedStage`` or an outcome."""
    return f"{stage.steps:,} steps" if stage.planned is None else f"{stage.steps:,} of {stage.planned:,} steps"


class SavedByTransformers(Closed):
    """A save of the model by transformers. What the user's program did with the model before that is not recorded."""

    after: str | None
    """SHA-256 of the record of the folder that the model was loaded from; None: it was built in memory."""
    tensors: int
    changed: int | None
    """Tensors whose values differ from those in that folder; None where some of those can no longer be read."""
    versions: dict[str, str]


class Record(Closed):
    """Enough to identify a checkpoint exactly, and to check it."""

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
    documents: dict[FileName, Digest] = Field(default_factory=dict)
    """SHA-256 of every other file of the build, by path."""
    given: dict[str, str] = Field(default_factory=dict, exclude_if=lambda files: not files)
    """SHA-256 of the files beside the source that parameters are from, by path."""
    parts: dict[str, StoredPart] = Field(default_factory=dict, exclude_if=lambda parts: not parts)
    """The origins of parts from outside, by kind."""
    untrained: tuple[str, ...] = ()
    """Parameters that had not been trained when the build ended."""
    training: tuple[TrainedStage, ...] = ()
    saved: tuple[SavedByTransformers, ...] = Field(default=(), exclude_if=lambda saves: not saves)
    """The saves by transformers since the build, in order: each saved a model that had been loaded from the one before."""
    versions: dict[str, str]


def read_record(folder: Path) -> Record | None:
    """Return the record of a folder; None where it has none. Raises ``BuildError`` if it is damaged."""
    path = folder / RECORD
    try:
        return Record.model_validate_json(read_json_bytes(within(folder, RECORD), MOST_RECORD))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise BuildError(f"{path} cannot be read: {reason(error)}.") from error
    except ValidationError as error:
        if (kind := find_unregistered_kind(error)) is not None:
            raise BuildError(f"{needed_part_message(folder, kind, read_recorded_parts(folder))}.") from error
        raise BuildError(f"{path} is damaged, or of another version of composer, at {first_problem(error)}.") from error


def record_of(source: Source) -> Record | None:
    """Return the record of a source that is itself a student."""
    return read_record(source.folder) if source.is_composed else None


def describe_source(source: Source, student: Record | None) -> StoredSource:
    """Return a record's entry for a source. student: its record, if it is itself a student."""
    unpacked = source.unpacked
    return StoredSource(
        family=source.family.model_type,
        folder=str(source.folder.resolve()),
        repo_id=source.repo_id,
        revision=source.revision,
        commit=source.commit,
        config_sha256=source.config_sha256,
        spec_hash=student.spec_hash if student else None,
        unpacked=None
        if unpacked is None
        else StoredUnpacked(
            path=str(unpacked.path),
            quantisation=unpacked.quantisation,
            files=dict(unpacked.files),
            text_only=unpacked.text_only,
        ),
        licence=licence_in(source.folder, student, None if unpacked is None else unpacked.licence),
    )


def licence_in(folder: Path, student: Record | None, fields: LicenceFields | None = None) -> StoredLicence:
    """Return the licence of the weights in a folder. A student whose card states none has that of its own source. Raises
    WeightsError.

    student: its record, for a folder with a student. fields: those of a card; None: of the card in the folder.
    """
    fields = read_card_licence(folder) if fields is None else fields
    if not fields and student is not None and student.source is not None:
        fields = student.source.licence.fields
    return StoredLicence(fields=dict(fields), files=small_files(folder, LICENCE_FILES))


def describe_file(
    path: Path,
    how: Placement | Literal["written", "rewritten"],
    *,
    origin: Path | None,
    contents: str | None,
    shard: Shard | None = None,
) -> StoredFile:
    """Return the record's entry for the file at ``path``. contents: its SHA-256, if known. shard: its header, if known."""
    shard, stat = shard or read_shard(path), path.stat()
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


def find_known_sha256(source: Source, student: Record | None, file: str) -> str | None:
    """Return the SHA-256 of a source's file if somebody has read the file: at its unpacking, or at a student's build.

    A file of a student is unchanged if its size, its header and its time stamp are those of the record. The names of files in the
    Hub's cache are not hashes that anybody has computed here.
    """
    shard = source.shards[file]
    if source.unpacked is not None:
        return source.unpacked.weights.get(file)
    stored = student.files.get(file) if student else None
    if stored is None or (stored.bytes, stored.header_sha256) != (shard.bytes, shard.header_sha256):
        return None
    return stored.sha256 if stored.modified_ns == shard.file.stat().st_mtime_ns else None


def versions() -> dict[str, str]:
    """Return the versions of the packages used in the build, as far as they are installed as packages."""
    return versions_of(_PACKAGES)


def find_untrained(plan: Plan, source: Source | None, student: Record | None) -> tuple[str, ...]:
    """Return the fresh parameters, and a student's untrained ones in files that have not changed since its build.

    student: the record of a source that is a student. Its files with heads are read whole.
    """
    untrained_names: list[str] = []
    as_built: dict[str, bool] = {}
    for name, entry in plan.inherited.items():
        if source is None or student is None or name not in student.untrained:
            continue
        if entry.file not in as_built:
            stored = student.files.get(entry.file)
            as_built[entry.file] = stored is not None and stored.sha256 == sha256(source.shards[entry.file].file)
        if as_built[entry.file]:
            untrained_names.append(name)
    return (*plan.fresh, *untrained_names)


def files_in(folder: Path) -> dict[str, Path]:
    """Return the contents of a folder and its subfolders, by path: files, links, and empty folders."""
    paths_by_name = {}
    for parent, folders, names in os.walk(folder):
        links = [name for name in folders if Path(parent, name).is_symlink()]
        paths = [Path(parent, name) for name in (*names, *links)]
        if not (names or folders) and Path(parent) != folder:
            paths.append(Path(parent))
        paths_by_name |= {path.relative_to(folder).as_posix(): path for path in paths}
    return dict(sorted(paths_by_name.items()))


def documents_in(folder: Path, weights: Mapping[str, StoredFile]) -> dict[str, str]:
    """Return the SHA-256 of each file in a folder but its weights."""
    return {name: sha256(path) for name, path in files_in(folder).items() if name not in weights and path.is_file()}


def is_read(name: str) -> bool:
    """True if a file decides the model's output: part of its tokenizer, its settings or its adapters."""
    return _matches_any(name, READ) or PurePosixPath(name).name in (ADAPTER_CONFIG, ADAPTER_WEIGHTS)


def is_tokenizer(name: str) -> bool:
    return _matches_any(name, TOKENIZER)


def _matches_any(name: str, patterns: tuple[str, ...]) -> bool:
    return any(name.count("/") == pattern.count("/") and fnmatch(name, pattern) for pattern in patterns)


def adapter_in(record: Record) -> str | None:
    """Return the folder of adapters that the record names; None if it names none."""
    named = {*record.files, *record.documents}
    folders = {path.parent.name for path in map(PurePosixPath, named) if path.name in (ADAPTER_WEIGHTS, ADAPTER_CONFIG)}
    return min(folders - {""}, default=None)


def not_of_the_build(folder: Path, record: Record) -> tuple[list[str], list[str]]:
    """Return the files that the build did not write, and those of the build that have changed since."""
    strangers, changed = [], []
    for name, path in files_in(folder).items():
        if name == RECORD:
            continue
        if name in record.files:
            if _is_rewritten(path, record.files[name]):
                changed.append(name)
        elif name not in record.documents:
            strangers.append(name)
        elif not path.is_file() or sha256(path) != record.documents[name]:
            changed.append(name)
    return strangers, changed


def _is_rewritten(path: Path, stored: StoredFile) -> bool:
    """True if a weight file has changed since the build and has no other link, so that removing it loses its contents.

    Large files are compared by size and time stamp.
    """
    if not path.is_file():
        return True
    stat = path.stat()
    if stat.st_nlink > 1:
        return False
    if stat.st_size != stored.bytes:
        return True
    if stored.sha256 is not None and stored.bytes <= HASHED_ANYWAY:
        return sha256(path) != stored.sha256
    return (stat.st_dev, stat.st_ino) == (stored.device, stored.inode) and stat.st_mtime_ns != stored.modified_ns
