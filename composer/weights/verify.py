"""Check that a built model still matches its record: spec, config, coverage, contents of every file, finite values.

Nothing in a folder proves its record: a change of files and record that agree with each other is not found here. For that, the
report has the record's own SHA-256, to compare with the one that the model's maker publishes.

The record is a manifest: it has the SHA-256 of each file, so any changed byte is found. Only a large linked file may have no hash,
as the build reads such files only for ``--hash``, unless the Hub's cache or an earlier student's record has their hash. While it is
the very file of the build (same device and inode), it is checked by its time stamp, which every write changes, otherwise by its
size and its header. The report says that its contents could not be checked.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

from blocks.part import Closed
from composer.errors import BuildError, SpecError, name_of
from composer.graph.rules import check_graph
from composer.reporting.tables import Readable, Table, View
from composer.reporting.words import plural, short_hashes
from composer.spec.built_models import WHOLE
from composer.spec.inherit import short_path
from composer.spec.loading import load_spec
from composer.spec.resolve import Resolved, fresh_parameters, resolve
from composer.system.files import sha256
from composer.weights.config import config_dict
from composer.weights.plan import Plan
from composer.weights.record import (
    CARD,
    CONFIG,
    RECORD,
    Record,
    StoredFile,
    adapter_in,
    files_in,
    is_read,
    is_tokenizer,
    read_record,
)
from composer.weights.stream import digest_and_counts
from converters.adapter import check_adapter
from converters.bounded import check_file, list_first, reason, shorten, within
from converters.composed import ADAPTER_KEY, SPEC_KEYS
from converters.errors import ConverterError
from converters.shard import Shard, read_shard
from converters.source import INDEX, Source, describe, open_source
from converters.trunk import DTYPE_KEYS

_LISTED = 5
Verdict = Literal["passed", "failed", "unknown"]


class Check(Closed):
    """One check. ``unknown``: it could not be made, for the reason in ``detail``."""

    what: str
    subject: str
    outcome: Verdict
    detail: str = ""


class VerifyReport(Readable, Closed):
    """All checks of a folder, in the order they were made."""

    folder: Path
    record_sha256: str
    """SHA-256 of the record itself, to compare with the one that its maker publishes."""
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

    @property
    def table(self) -> Table:
        """A row a check."""
        rows = ((check.outcome, check.what, check.subject, short_hashes(check.detail)) for check in self.checks)
        return Table("", ("outcome", "what", "of", ""), tuple(rows))

    def verdict(self, name: str) -> str:
        """Return the result of all checks in a sentence. name: what the reader calls the model."""
        unchecked = f"; {len(self.unchecked)} could not be checked" if self.unchecked else ""
        if self.ok:
            return f"{name} matches its record{unchecked}"
        return f"{name} does not match its record: {plural(len(self.failed), 'check')} failed{unchecked}"

    def view(self) -> View:
        return View(self.verdict(short_path(self.folder)), (self.table,), (f"Record: SHA-256 {self.record_sha256}",))


def verify(folder: str | os.PathLike[str], progress: Callable[[str, int, int], None] | None = None) -> VerifyReport:
    """Read all of a built model and check it against its record. Mismatches are in the report.

    progress: called with each weight file's name, its bytes read so far, and its size. Raises ``BuildError`` if there is no
    record to check against.
    """
    path = Path(name_of(folder)).expanduser()
    if not path.is_dir():
        raise BuildError(f"{path} is not a folder; expected one that `compose build` has written.")
    record = read_record(path)
    if record is None:
        raise BuildError(f"{path} has no {RECORD}: it was not written by `compose build`, so there is nothing to check it against.")
    present = files_in(path)
    checks = [make_check("spec", RECORD, *_spec(record)), make_check("config", CONFIG, *_config(path, record))]
    if (adapter := adapter_in(record)) is not None:
        checks.append(make_check("adapters", adapter, *_adapter(path, adapter)))
    checks.append(make_check("coverage", "weights", *_coverage(path, record)))
    for name in dict.fromkeys(entry.output for entry in record.plan.parameters.values()):
        if name not in record.files:
            checks.append(make_check("contents", name, "failed", "the record does not name it, as every build's does"))
    for name, stored in record.files.items():
        if name in present:
            checks += _weight_file(path, name, stored, record.plan, progress)
        else:
            checks.append(make_check("contents", name, "failed", "it is missing"))
    checks += [*_documents(path, record, present), *_strangers(record, present), *_saves(record)]
    return VerifyReport(folder=path, record_sha256=sha256(path / RECORD), checks=tuple(checks))


def make_check(kind: str, subject: str, outcome: Verdict, detail: str = "") -> Check:
    """Return a check. kind: such as ``contents``. subject: a file."""
    return Check(what=kind, subject=subject, outcome=outcome, detail=detail)


def _saves(record: Record) -> Iterator[Check]:
    """Yield a check for each save by transformers with changed values: the record does not describe how they changed."""
    for save in record.saved:
        if save.changed != 0:
            changed = "an unknown number" if save.changed is None else f"{save.changed:,}"
            detail = (
                f"transformers saved it: {changed} of {save.tensors:,} tensors had changed, and the record does not describe how"
            )
            yield make_check("training", RECORD, "unknown", detail)


def _spec(record: Record) -> tuple[Verdict, str]:
    """Check that the resolved document in the record has the recorded hash, and that the recorded spec resolves to it."""
    if not record.resolved.has_hash(record.spec_hash):
        return "failed", f"the stored document hashes to {record.resolved.hash}, not to {record.spec_hash}"
    if "extends" in record.spec:
        return "failed", WHOLE
    try:
        spec = load_spec(record.spec)
        again = resolve(spec, None if spec.trunk is not None else record.resolved.dimensions, idle=True)
    except SpecError as error:
        return "failed", f"the stored spec cannot be resolved: {error}"
    if not again.has_hash(record.spec_hash):
        return "failed", f"the stored spec has the hash {again.hash}; expected {record.spec_hash}"
    different = [name for name in ("name", "paper", "recipe") if getattr(again, name) != getattr(record.resolved, name)]
    if different:
        return "failed", f"the stored spec and the stored document differ in {', '.join(different)}"
    return "passed", f"hash {record.spec_hash}"


def _config(folder: Path, record: Record) -> tuple[Verdict, str]:
    """Check that config.json has the trunk, the heads and the adapters of the record, and nothing else."""
    try:
        described = describe(folder)
    except ConverterError as error:
        return "failed", str(error)
    config, trunk, recorded = described.config, _comparable(asdict(described.trunk)), _comparable(record.trunk)
    # A host's windows follow from its config, which is compared.
    different = [key for key in trunk if key != "windows" and trunk[key] != recorded.get(key)]
    recorded_spec = (record.resolved.model_dump(mode="json"), record.spec_hash)
    different += [key for key, value in zip(SPEC_KEYS, recorded_spec, strict=True) if config.get(key) != value]
    if config.get(ADAPTER_KEY) != adapter_in(record):
        different.append(ADAPTER_KEY)
    if described.trunk.labels is not None:
        written = config_dict(described.trunk, record.resolved, described.trunk.dtype)
        different += [key for key in ("id2label", "label2id") if config.get(key, written[key]) != written[key]]
    # A file that is as the build wrote it has no keys that were added later.
    if described.config_sha256 != record.documents.get(CONFIG):
        different += described.notes
    if different:
        return "failed", f"differs from the record: {', '.join(different)}"
    return "passed", "the trunk and the heads of the record"


def _comparable(trunk: Mapping[str, Any]) -> dict[str, Any]:
    """Return a trunk, a host's config in it without the dtype: the source may have another dtype, and the trunk has the model's
    beside it."""
    config = trunk.get("config")
    return {**trunk, "config": config and {key: value for key, value in config.items() if key not in DTYPE_KEYS}}


def _adapter(folder: Path, name: str) -> tuple[Verdict, str]:
    """Check that adapters are of a kind that is loaded, as a loader does before it reads them."""
    try:
        check_adapter(folder, name)
    except ConverterError as error:
        return "failed", str(error)
    return "passed", "of a kind that is loaded, on projections of attention"


def _coverage(folder: Path, record: Record) -> tuple[Verdict, str]:
    if problems := problems_of(folder, record.resolved, record.plan):
        return "failed", "; ".join(problems)
    return "passed", f"{len(record.plan.parameters)} tensors, names and shapes"


def _weight_file(
    folder: Path, name: str, stored: StoredFile, plan: Plan, progress: Callable[[str, int, int], None] | None
) -> list[Check]:
    def report_progress(done: int) -> None:
        if progress is not None:
            progress(shard.file.name, done, shard.bytes)

    try:
        path = within(folder, name)
        check_file(path)
        shard = read_shard(path)
        digest, counts = digest_and_counts(shard, report_progress)
    except ConverterError as error:
        return [make_check("contents", name, "failed", str(error))]
    except OSError as error:
        return [make_check("contents", name, "failed", _why_not_of_a_build(folder / name, error))]
    contents = make_check("contents", name, *_contents(shard, stored, digest))
    endless = {tensor: count for tensor, count in counts.items() if tensor not in plan.dropped}
    if endless:
        named = list_first(f"{shorten(tensor)} ({count:,})" for tensor, count in endless.items())
        return [contents, make_check("finite", name, "failed", f"NaN or infinity in {named}")]
    return [contents, make_check("finite", name, "passed", f"{len(shard.tensors)} tensors")]


def _contents(shard: Shard, stored: StoredFile, digest: str) -> tuple[Verdict, str]:
    """Check a weight file against its entry in the record. digest: the file's SHA-256."""
    if stored.sha256 is not None:
        if digest == stored.sha256:
            return "passed", f"SHA-256 {digest}"
        return "failed", f"SHA-256 is {digest}, at the build it was {stored.sha256}"
    if (shard.bytes, shard.header_sha256) != (stored.bytes, stored.header_sha256):
        return "failed", "its size or its header is not that of the build"
    stat = shard.file.stat()
    if (stat.st_dev, stat.st_ino) != (stored.device, stored.inode):
        return "unknown", "not hashed at the build, and no longer the file that was linked; size and header are right"
    if stat.st_mtime_ns != stored.modified_ns:
        return "failed", "it has been written to since the build, as its time stamp shows"
    return "unknown", "not hashed at the build; its time stamp shows no later change"


def _documents(folder: Path, record: Record, present: Mapping[str, Path]) -> Iterator[Check]:
    """Check the hashes of the build's other files. Of config and index, other checks read the contents.

    present: the files of the folder. Raises BuildError for one that cannot be read. What is no regular file of the folder itself,
    such as a link out of it, fails whatever its name.
    """
    for name, wanted in record.documents.items():
        try:
            digest = sha256(within(folder, name)) if name in present else None
        except OSError as error:
            yield make_check("contents", name, "failed", _why_not_of_a_build(present[name], error))
            continue
        if name in (CONFIG, INDEX):
            continue
        if digest == wanted:
            yield make_check("contents", name, "passed", f"SHA-256 {digest}")
            continue
        problem = "it is missing" if digest is None else f"SHA-256 is {digest}, at the build it was {wanted}"
        if is_read(name):
            yield make_check("contents", name, "failed", problem)
        else:
            yield make_check("contents", name, "unknown", f"{problem}; it has no effect on the model's output")


def _why_not_of_a_build(path: Path, error: OSError) -> str:
    """Return the problem with a path that is no file of a build, such as a pipe or a link out of the folder.

    Raises BuildError if the system did not let the file be read: it is then unknown whether it matches.
    """
    if error.errno in (errno.EACCES, errno.EPERM, errno.EIO):
        raise BuildError(f"{path} cannot be read: {reason(error)}, so it cannot be checked.") from error
    return reason(error)


def _strangers(record: Record, present: Mapping[str, Path]) -> Iterator[Check]:
    """Files that no build wrote: a check for each that transformers would read, and one for all the others."""
    tokenized = any(map(is_tokenizer, record.documents))
    others = []
    for name in present:
        if name in (RECORD, CONFIG, INDEX, CARD) or name in record.files or name in record.documents:
            continue
        if not is_read(name):
            others.append(name)
        elif is_tokenizer(name) and not tokenized:
            yield make_check("contents", name, "unknown", "not written by a build: the record has no tokenizer")
        else:
            yield make_check("contents", name, "failed", "not written by a build, and read when the model is loaded")
    if others:
        names = ", ".join(others[:_LISTED]) + (f" and {len(others) - _LISTED} more" if len(others) > _LISTED else "")
        detail = f"no build put there {names}: what loads the model reads none of it"
        yield make_check("contents", "the rest", "unknown", detail)


def problems_of(folder: Path, resolved: Resolved, plan: Plan) -> list[str]:
    """Return the differences between the headers of a folder and its plan, one line each."""
    try:
        built = open_source(folder)
    except ConverterError as error:
        return [str(error)]
    problems = find_uncovered(built, resolved)
    for name, entry in plan.parameters.items():
        tensor = built.tensors.get(name)
        if tensor is None:
            problems.append(f"{name} is missing")
        elif (tensor.file.name, tensor.shape, tensor.dtype) != (entry.output, entry.shape, entry.dtype):
            problems.append(
                f"{name} is {tensor.dtype} {list(tensor.shape)} in {tensor.file.name}, "
                f"planned as {entry.dtype} {list(entry.shape)} in {entry.output}"
            )
    silent = {
        stored_name
        for stored_name, dropped in plan.dropped.items()
        if stored_name in built.tensors and dropped.shape == built.tensors[stored_name].shape
    }
    problems += [f"{name} is in no plan" for name in built.tensors if name not in plan.parameters and name not in silent]
    return problems


def find_uncovered(built: Source, resolved: Resolved) -> list[str]:
    """Return the parameters of the composed heads that a model lacks, has too many of, or has in another shape, one line each.

    The trunk's coverage has been checked when the model was opened. Raises GraphError for heads that mean nothing: whoever wrote
    the document may not have resolved it.
    """
    for name, heads in sorted({(group.head, group.heads) for layer in resolved.layers for group in layer}):
        check_graph(resolved.heads[name], resolved.shape(heads), ("heads", name), idle=True)
    wanted = fresh_parameters(resolved)
    problems = [f"{name} {list(fresh.shape)} is missing" for name, fresh in wanted.items() if name not in built.covered.composed]
    for name in built.covered.composed:
        shape = built.tensors[name].shape
        if name not in wanted:
            problems.append(f"{name} {list(shape)} has no place in the spec")
        elif wanted[name].shape != shape:
            problems.append(f"{name} is {list(shape)}, the spec has {list(wanted[name].shape)}")
    return problems
