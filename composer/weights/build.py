"""A resolved spec and a source become a folder that ``from_pretrained`` loads: links, streams, and a few small files."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from blocks.part import Closed
from composer.drawing.picture import picture
from composer.errors import BuildError
from composer.files import sha256
from composer.spec.outside import stored_parts
from composer.spec.resolve import Resolved
from composer.tables import Readable, View
from composer.weights.card import PICTURE, model_card
from composer.weights.check import problems_of
from composer.weights.dimensions import dimensions
from composer.weights.finite import digest_and_counts, refuse_not_finite
from composer.weights.head_checkpoints import LolcatsValues, merged_piece, read_head_checkpoints, value_piece, with_head_checkpoints
from composer.weights.output import check_output, check_space, whole_or_nothing
from composer.weights.place import copy_files, place
from composer.weights.plan import FRESH_FILE, Inherited, Plan, ShardPlan, make_plan
from composer.weights.record import (
    RECORD,
    Record,
    StoredFile,
    known_sha256,
    record_of,
    stored_file,
    stored_source,
    versions,
    write_json,
    write_text,
)
from composer.weights.side_files import CARD, CONFIG, HASHED_ANYWAY, documents_in
from composer.weights.sources import check_merged
from composer.weights.stream import TensorToWrite, fresh_piece, inherited_piece, write_shard
from composer.weights.tokenizer import tokenizer_notes
from composer.weights.untrained import untrained
from converters.hosts import Host
from converters.source import INDEX, Source
from converters.trunk import Dtype

SHOWN = 8
"""Problems of a host's weights that a message has at most."""

Progress = Callable[[str, int, int], None]
"""A callback for progress: it takes a file's name, its bytes written so far, and its size."""


class BuildReport(Readable, Closed):
    """The report of a build, or of a dry run. ``bytes_shared`` are in files that the output has in common with its source."""

    out: Path
    dry_run: bool
    spec_hash: str
    plan: Plan
    files: dict[str, StoredFile]
    untrained: tuple[str, ...]
    bytes_written: int
    bytes_shared: int
    seconds: float

    def view(self) -> View:
        from composer.weights.build_report import view_of

        return view_of(self)


def build_folder(
    resolved: Resolved,
    source: Source,
    out: str | os.PathLike[str],
    *,
    spec_document: Mapping[str, Any],
    dtype: Dtype | None = None,
    seed: int = 0,
    copy: bool = False,
    hash_contents: bool = False,
    force: bool = False,
    dry_run: bool = False,
    progress: Progress | None = None,
    lolcats: Sequence[str | os.PathLike[str]] = (),
    check: Callable[[Record], None] | None = None,
) -> BuildReport:
    """Builds ``resolved`` from ``source`` into the folder ``out``, which appears whole or not at all.

    - spec_document: the spec as it was read, to be stored.
    - dtype: of every tensor; None keeps each as it is.
    - seed: of the fresh parameters.
    - copy: gives the output bytes of its own instead of links to the source's.
    - hash_contents: reads linked and copied files to note their SHA-256, so that ``verify`` can check each byte of them later;
      small models (``HASHED_ANYWAY``) are hashed in any case.
    - force: replaces a model that stands at ``out``.
    - dry_run: makes the plan and checks, but writes nothing.
    - lolcats: LoLCATs' checkpoints, which bring the heads' parameters and adapters to merge.
    - check: called with the record before the folder is in place. An error that it raises leaves nothing written.

    Raises ``BuildError`` and ``SourceError``; the source is only ever read.
    """
    from composer.weights.config import config_dict

    began = time.perf_counter()
    target = check_output(Path(out), source, force=force)
    check_merged(source)
    if resolved.dimensions != dimensions(source.trunk):
        raise BuildError(f"The spec was resolved against another model than {source.folder}. Resolve it against this one.")
    given = read_head_checkpoints(lolcats, resolved, source) if lolcats else None
    plan = make_plan(resolved, source, dtype)
    if given is not None:
        plan = with_head_checkpoints(plan, given, dtype)
    plan = plan.model_copy(update={"notes": (*plan.notes, *tokenizer_notes(source.folder, source.trunk.vocabulary_size))})
    trunk = replace(source.trunk, dtype=plan.dtype)
    config = config_dict(trunk, resolved, plan.dtype)
    check_host(source, config, plan)
    student = record_of(source)
    raw = untrained(source, student, plan)
    if dry_run:
        return report_of(target, resolved, plan, raw, {}, 0, began, dry_run=True)
    check_space(target, _needed(target, source, plan, copy))

    with whole_or_nothing(target, force=force) as folder:
        writer = _Writer(folder, source, student, resolved, plan, given, copy, hash_contents, seed, progress)
        copy_files(source.folder, source.small_files, folder)
        files = writer.weights()
        write_json(folder / INDEX, _index(plan))
        record = Record(
            spec=dict(spec_document),
            resolved=resolved,
            spec_hash=resolved.hash,
            source=stored_source(source, student),
            seed=seed,
            trunk=asdict(trunk),
            plan=plan,
            files=files,
            given={} if given is None else {str(file): sha256(file) for file in given.files},
            untrained=raw,
            parts=stored_parts(resolved),
            versions=versions(),
        )
        record = complete_folder(folder, config, record, target.name)
        if check is not None:
            check(record)
        total = bytes_in(folder)
    return report_of(target, resolved, plan, raw, files, total, began, dry_run=False)


def check_host(source: Source, config: Mapping[str, Any], plan: Plan) -> None:
    """Checks that the plan's tensors are just those of the host's class, for a host of another family. Raises BuildError."""
    if not isinstance(source.trunk, Host):
        return
    from composer.model.coverage import uncovered_by_host

    problems = uncovered_by_host(config, {name: (entry.shape, entry.dtype) for name, entry in plan.parameters.items()})
    if problems:
        raise BuildError(
            f"The weights of {source.folder} do not fit its config.json, as transformers reads it:\n"
            + "\n".join(f"  {line}" for line in problems[:SHOWN])
        )


def complete_folder(folder: Path, config: Mapping[str, Any], record: Record, name: str) -> Record:
    """Puts config, picture, card and record beside the weights, and checks the folder against the plan. Returns the record.

    name: of the model, for its card. Raises ``BuildError``.
    """
    write_json(folder / CONFIG, config)
    write_text(folder / PICTURE, picture(record.resolved, dtype=record.plan.dtype).svg)
    write_text(folder / CARD, model_card(record, name))
    record = record.model_copy(update={"documents": documents_in(folder, record.files)})
    write_json(folder / RECORD, record.model_dump(mode="json"))
    if problems := problems_of(folder, record.resolved, record.plan):
        raise BuildError("The output did not come out as planned:\n" + "\n".join(f"  {line}" for line in problems))
    return record


def bytes_in(folder: Path) -> int:
    """The bytes of all files in a folder and below it."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


@dataclass(frozen=True)
class _Writer:
    """Writes the weights of one build into a folder. student: the record of a source that is itself a student.
    given: the values in LoLCATs' files."""

    folder: Path
    source: Source
    student: Record | None
    resolved: Resolved
    plan: Plan
    given: LolcatsValues | None
    copy: bool
    hash_contents: bool
    seed: int
    progress: Progress | None

    def weights(self) -> dict[str, StoredFile]:
        # The small file first: behind a large copy it would wait for the disk.
        fresh = {FRESH_FILE: self._fresh()} if self.plan.fresh or self.plan.given else {}
        shards = {
            shard.output: self._linked(shard) if shard.action == "link" else self._rewritten(shard)
            for shard in self.plan.shards
            if shard.output is not None
        }
        return {**shards, **fresh}

    def _linked(self, shard: ShardPlan) -> StoredFile:
        origin, target = self.source.shards[shard.file].file, self.folder / str(shard.output)
        how = place(origin, target, copy=self.copy, moved=self._moved(target.name, shard.bytes))
        contents = known_sha256(self.source, self.student, shard.file)
        if contents is None and (self.hash_contents or self.plan.bytes("link") <= HASHED_ANYWAY):
            contents, counts = digest_and_counts(self.source.shards[shard.file])
            refuse_not_finite(origin, counts, self.plan.dropped)
        return stored_file(target, how, origin=origin, contents=contents)

    def _rewritten(self, shard: ShardPlan) -> StoredFile:
        target = self.folder / str(shard.output)
        pieces = [self._inherited(name, entry) for name, entry in self.plan.inherited.items() if entry.file == shard.file]
        contents = write_shard(target, pieces, self._moved(target.name, shard.bytes))
        return stored_file(target, "rewritten", origin=None, contents=contents)

    def _inherited(self, name: str, entry: Inherited) -> TensorToWrite:
        tensor = self.source.tensors[entry.tensor]
        if self.given is not None and entry.added:
            return merged_piece(name, tensor, entry.dtype, self.given.products[name])
        return inherited_piece(name, tensor, entry.dtype)

    def _fresh(self) -> StoredFile:
        from composer.spec.parameters import fresh_parameters

        target = self.folder / FRESH_FILE
        wanted = fresh_parameters(self.resolved)
        pieces = [fresh_piece(name, wanted[name], entry.dtype, self.seed) for name, entry in self.plan.fresh.items()]
        if self.given is not None:
            values = self.given.values
            pieces += [value_piece(name, values[name], entry.shape, entry.dtype) for name, entry in self.plan.given.items()]
        contents = write_shard(target, pieces, self._moved(target.name, self.plan.fresh_bytes))
        return stored_file(target, "written", origin=None, contents=contents)

    def _moved(self, name: str, total: int) -> Callable[[int], None]:
        return progress_of(self.progress, name, total)


def progress_of(progress: Progress | None, name: str, total: int) -> Callable[[int], None]:
    """A function that adds up the bytes written to one file, and calls ``progress`` with the sum."""
    done = 0

    def moved(count: int) -> None:
        nonlocal done
        done += count
        if progress is not None:
            progress(name, done, total)

    return moved


def _index(plan: Plan) -> dict[str, Any]:
    return {
        "metadata": {"format": "pt", "total_size": plan.total_bytes},
        "weight_map": {name: entry.output for name, entry in plan.parameters.items()},
    }


def _needed(target: Path, source: Source, plan: Plan, copy: bool) -> int:
    """The bytes that the build writes at least."""
    parent = next(parent for parent in target.parents if parent.exists())
    elsewhere = source.folder.stat().st_dev != parent.stat().st_dev
    return plan.bytes("rewrite") + plan.fresh_bytes + (plan.bytes("link") if copy or elsewhere else 0)


def report_of(
    out: Path,
    resolved: Resolved,
    plan: Plan,
    raw: tuple[str, ...],
    files: dict[str, StoredFile],
    total: int,
    began: float,
    *,
    dry_run: bool,
) -> BuildReport:
    """The report of a finished build. total: bytes of all files of the output, small ones included."""
    shared = sum(file.bytes for file in files.values() if file.how in ("linked", "cloned"))
    return BuildReport(
        out=out,
        dry_run=dry_run,
        spec_hash=resolved.hash,
        plan=plan,
        files=files,
        untrained=raw,
        bytes_written=total - shared,
        bytes_shared=shared,
        seconds=time.perf_counter() - began,
    )
