"""The files beside the weights: those of the build, those that decide the model's output, and those added later."""

from __future__ import annotations

import os
from collections.abc import Mapping
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath

from composer.files import sha256
from composer.weights.record import RECORD, Record, StoredFile
from converters.composed import ADAPTER_CONFIG, ADAPTER_WEIGHTS
from converters.source import GENERATION_CONFIG, INDEX, SINGLE, TOKENIZER

CARD, CONFIG, TRAINING = "README.md", "config.json", "training"
READ = (*TOKENIZER, GENERATION_CONFIG, SINGLE, ADAPTER_CONFIG, "adapter_model.*")
"""The files that transformers finds in a folder by their names, beside config and index."""
HASHED_ANYWAY = 256 * 2**20
"""Bytes of linked and copied files up to which they are hashed in any case: this takes a few tenths of a second."""


def files_in(folder: Path) -> dict[str, Path]:
    """The contents of a folder and its subfolders, by path: files, links, and empty folders."""
    found = {}
    for parent, folders, names in os.walk(folder):
        links = [name for name in folders if Path(parent, name).is_symlink()]
        paths = [Path(parent, name) for name in (*names, *links)]
        if not (names or folders) and Path(parent) != folder:
            paths.append(Path(parent))
        found |= {path.relative_to(folder).as_posix(): path for path in paths}
    return dict(sorted(found.items()))


def documents_in(folder: Path, weights: Mapping[str, StoredFile]) -> dict[str, str]:
    """SHA-256 of each file in a folder but its weights."""
    return {name: sha256(path) for name, path in files_in(folder).items() if name not in weights and path.is_file()}


def is_read(name: str) -> bool:
    """Whether a file decides the model's output: of its tokenizer, its settings or its adapters."""
    return _fits(name, READ) or PurePosixPath(name).name in (ADAPTER_CONFIG, ADAPTER_WEIGHTS)


def is_tokenizer(name: str) -> bool:
    return _fits(name, TOKENIZER)


def _fits(name: str, patterns: tuple[str, ...]) -> bool:
    return any(name.count("/") == pattern.count("/") and fnmatch(name, pattern) for pattern in patterns)


def adapter_in(record: Record) -> str | None:
    """The folder of adapters that the record names."""
    named = {*record.files, *(record.documents or {})}
    folders = {path.parent.name for path in map(PurePosixPath, named) if path.name in (ADAPTER_WEIGHTS, ADAPTER_CONFIG)}
    return min(folders - {""}, default=None)


def not_of_the_build(folder: Path, record: Record) -> tuple[list[str], list[str]]:
    """The files that the build did not write, and those of the build that have changed since."""
    strangers, changed = [], []
    for name, path in files_in(folder).items():
        if name == RECORD:
            continue
        if name in record.files:
            if _rewritten(path, record.files[name]):
                changed.append(name)
        elif record.documents is None:
            if not _of_an_earlier_build(name, path, record):
                strangers.append(name)
        elif name not in record.documents:
            strangers.append(name)
        elif not path.is_file() or sha256(path) != record.documents[name]:
            changed.append(name)
    return strangers, changed


def _rewritten(path: Path, stored: StoredFile) -> bool:
    """Whether a weight file is no longer the build's, and has no other link, so that removing it loses its contents. Large files
    are compared by size and time stamp."""
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


def _of_an_earlier_build(name: str, path: Path, record: Record) -> bool:
    """Whether a build by an earlier version wrote a file that its record does not name: all of them did, or the source has it."""
    always = {CONFIG, INDEX, CARD}
    if record.source is None:
        always.add(GENERATION_CONFIG)
    if (adapter := adapter_in(record)) is not None:
        always.add(f"{adapter}/{ADAPTER_CONFIG}")
    if record.training:
        always |= {TRAINING, f"{TRAINING}/log.jsonl", f"{TRAINING}/curve.png"}
    if name in always:
        return True
    same = None if record.source is None else Path(record.source.folder) / name
    return same is not None and same.is_file() and path.is_file() and sha256(same) == sha256(path)
