"""Whether a built model still is what its record says: spec, coverage, contents, finite values.

What can be known of contents. A file that the build wrote itself was hashed while it was written, so any changed byte of it is
found. A file that the build linked or copied without reading it is checked as far as is known:

1. by its SHA-256, if the Hub's cache or an earlier student's record knew it, or the build did: when it was asked to, and for
   small models;
2. else, where it still is the very file of the build (same device and inode), by its time stamp: whoever writes into a file
   changes it. A disk that loses a bit by itself does not;
3. else, for one with bytes of its own, by comparing it with the source's file, if that is still there;
4. else by size and header alone, and the report says that the contents could not be checked.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Literal

from pydantic import ValidationError

from blocks.part import Closed
from composer.errors import BuildError
from composer.spec.resolve import Resolved
from composer.weights.check import problems_of
from composer.weights.contents import blocks, sha256
from composer.weights.record import RECORD, Record, StoredFile, read_record
from composer.weights.stream import all_finite, as_tensor
from converters.composed import SPEC_KEYS
from converters.errors import ConverterError
from converters.shard import Shard, read_shard
from converters.source import describe
from converters.trunk import DEFAULTS

Outcome = Literal["passed", "failed", "unknown"]


class Check(Closed):
    """One thing that was looked at. ``unknown``: it could not be checked, and ``detail`` says why."""

    what: str
    subject: str
    outcome: Outcome
    detail: str = ""


class VerifyReport(Closed):
    """All checks of a folder, in the order they were made."""

    folder: Path
    checks: tuple[Check, ...]

    @property
    def ok(self) -> bool:
        """Whether nothing failed. What could not be checked has not failed: see ``unchecked``."""
        return not any(check.outcome == "failed" for check in self.checks)

    @property
    def failed(self) -> tuple[Check, ...]:
        return tuple(check for check in self.checks if check.outcome == "failed")

    @property
    def unchecked(self) -> tuple[Check, ...]:
        return tuple(check for check in self.checks if check.outcome == "unknown")


def verify(folder: str | os.PathLike[str], progress: Callable[[str, int, int], None] | None = None) -> VerifyReport:
    """Reads all of a built model and checks it against its record. Mismatches are in the report.

    progress: told of each weight file's name, the bytes read of it, and its size. Raises ``BuildError`` where there is no
    record to check against.
    """
    path = Path(folder).expanduser()
    if not path.is_dir():
        raise BuildError(f"{path} is not a folder; expected one that `compose build` has written.")
    record = read_record(path)
    if record is None:
        raise BuildError(f"{path} has no {RECORD}: it was not written by `compose build`, so there is nothing to check it against.")
    checks = [_spec(record), _config(path, record), _coverage(path, record)]
    for name, stored in record.files.items():
        checks += _file(path / name, stored, progress)
    return VerifyReport(folder=path, checks=tuple(checks))


def _spec(record: Record) -> Check:
    found = record.resolved.hash
    if found == record.spec_hash:
        return Check(what="spec", subject=RECORD, outcome="passed", detail=f"hash {found}")
    return Check(
        what="spec", subject=RECORD, outcome="failed", detail=f"the stored document hashes to {found}, not to {record.spec_hash}"
    )


def _config(folder: Path, record: Record) -> Check:
    """config.json still describes the trunk, and holds the heads, that the record has."""
    try:
        described = describe(folder)
    except ConverterError as error:
        return Check(what="config", subject="config.json", outcome="failed", detail=str(error))
    trunk, recorded = asdict(described.trunk), DEFAULTS | record.trunk
    different = [key for key in trunk if trunk[key] != recorded.get(key)]
    spec, found = (described.config.get(key) for key in SPEC_KEYS)
    if not _is(record.resolved, spec):
        different.append("spec")
    if found != record.spec_hash:
        different.append("spec_hash")
    if different:
        detail = f"not what the record says: {', '.join(different)}"
        return Check(what="config", subject="config.json", outcome="failed", detail=detail)
    return Check(what="config", subject="config.json", outcome="passed", detail="the trunk and the heads of the record")


def _is(resolved: Resolved, document: object) -> bool:
    """Whether a document says just this; one of an earlier version does not say what parts have gained since."""
    try:
        return Resolved.model_validate(document) == resolved
    except ValidationError:
        return False


def _coverage(folder: Path, record: Record) -> Check:
    problems = problems_of(folder, record.resolved, record.plan)
    if not problems:
        return Check(
            what="coverage", subject="weights", outcome="passed", detail=f"{len(record.plan.parameters)} tensors, names and shapes"
        )
    return Check(what="coverage", subject="weights", outcome="failed", detail="; ".join(problems))


def _file(path: Path, stored: StoredFile, progress: Callable[[str, int, int], None] | None) -> list[Check]:
    try:
        shard = read_shard(path)
    except ConverterError as error:
        return [Check(what="contents", subject=path.name, outcome="failed", detail=str(error))]
    contents, endless = _scan(shard, progress)
    finite = Check(
        what="finite",
        subject=path.name,
        outcome="failed" if endless else "passed",
        detail=f"NaN or infinity in {', '.join(endless)}" if endless else f"{len(shard.tensors)} tensors",
    )
    outcome, detail = _contents(shard, stored, contents)
    return [Check(what="contents", subject=path.name, outcome=outcome, detail=detail), finite]


def _contents(shard: Shard, stored: StoredFile, contents: str) -> tuple[Outcome, str]:
    """Which of the four ways of the module's docstring applies, and what it finds. contents: the file's SHA-256."""
    if stored.sha256 is None:
        return _unhashed(shard, stored, contents)
    if contents == stored.sha256:
        return "passed", f"SHA-256 {contents}"
    return "failed", f"SHA-256 is {contents}, at the build it was {stored.sha256}"


def _unhashed(shard: Shard, stored: StoredFile, contents: str) -> tuple[Outcome, str]:
    if (shard.bytes, shard.header_sha256) != (stored.bytes, stored.header_sha256):
        return "failed", "its size or its header is not that of the build"
    stat = shard.file.stat()
    same_file = (stat.st_dev, stat.st_ino) == (stored.device, stored.inode)
    if same_file and stat.st_mtime_ns != stored.modified_ns:
        return "failed", "it has been written to since the build, as its time stamp shows"
    origin = Path(stored.origin) if stored.origin else None
    if origin is not None and origin.is_file() and not origin.samefile(shard.file):
        if sha256(origin) == contents:
            return "passed", f"equal to {origin}, byte for byte"
        return "failed", f"differs from {origin}: one of the two has changed since the build"
    if same_file:
        return "unknown", "not hashed at the build; its time stamp says that nobody has written to it since"
    return "unknown", "not hashed at the build, and the source's file is not there to compare with; size and header are right"


def _scan(shard: Shard, progress: Callable[[str, int, int], None] | None) -> tuple[str, list[str]]:
    """SHA-256 of the file and the names of tensors with a value that is not finite, in one reading."""
    digest = hashlib.sha256()
    for block in blocks(shard.file, 0, shard.header_bytes):
        digest.update(block)
    endless = []
    for name, tensor in shard.tensors.items():
        finite = True
        for block in blocks(shard.file, tensor.start, tensor.end):
            digest.update(block)
            finite = finite and all_finite(as_tensor(block, tensor.dtype))
        if not finite:
            endless.append(name)
        if progress is not None:
            progress(shard.file.name, tensor.end, shard.bytes)
    return digest.hexdigest(), endless
