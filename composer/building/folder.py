"""Builds a folder that ``from_pretrained`` loads, from a source or from nothing: links, new weight files, and a few small files."""

from __future__ import annotations

import math
import os
import re
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from blocks.part import Closed, Fresh
from composer.drawing.picture import picture
from composer.errors import BuildError
from composer.reporting.tables import Readable, Table, View
from composer.reporting.words import plural, quantity, ranges, short_hashes, size
from composer.spec.external_parts import list_stored_parts
from composer.spec.inherit import short_path
from composer.spec.notes import notes_on_layers
from composer.spec.resolve import Resolved
from composer.system.files import sha256
from composer.weights.card import PICTURE, model_card
from composer.weights.config import config_dict, own_parameters, trunk_from
from composer.weights.lolcats import LolcatsValues, merge_piece, read_values, value_piece
from composer.weights.output import (
    STUB_TEXT,
    check_output,
    check_space,
    copy_files,
    link_or_copy,
    whole_or_nothing,
    write_json,
    write_text,
)
from composer.weights.plan import Plan, ShardPlan, make_plan, weights_of
from composer.weights.record import (
    CARD,
    CONFIG,
    HASHED_ANYWAY,
    RECORD,
    Record,
    StoredFile,
    describe_file,
    describe_source,
    documents_in,
    find_known_sha256,
    find_untrained,
    record_of,
    versions,
)
from composer.weights.sources import check_merged
from composer.weights.stream import TensorToWrite, digest_and_counts, fresh_piece, inherit_piece, refuse_not_finite, write_shard
from composer.weights.tokenizer import Tokenizer, check_tokenizer_of_source, tokenizer_notes
from composer.weights.verify import problems_of
from converters.coverage import Shaped
from converters.hosts import Host
from converters.model_types import STUB
from converters.source import GENERATION_CONFIG, INDEX, Source
from converters.trunk import Dtype, Trunk, is_composed

MOST_PROBLEMS = 8
"""The largest number of problems of a host's weights in a message."""
ACTIONS = {"link": "kept as it is", "rewrite": "rewritten", "leave": "not copied"}

Progress = Callable[[str, int, int], None]
"""A callback for progress. Its arguments are a file's name, its bytes written so far, and its size."""


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

    def view(self, seed: int | None = None) -> View:
        """Return the plan, and the files if they were written. seed: of the fresh parameters, to be named."""
        notes = tuple(f"Note: {note}" for note in self.plan.notes)
        if self.dry_run:
            nothing = f"Nothing was written; without --dry-run it would be {short_path(self.out)}"
            return View("", tuple(_tables_of(self.plan)), (*notes, nothing))
        files = tuple(
            (name, size(file.bytes), file.how + (f" from {Path(file.origin).name}" if file.origin else ""))
            for name, file in self.files.items()
        )
        built = Table(f"Built {short_path(self.out)}", ("", "", ""), files, range(1, 2))
        remarks = self._remarks("" if seed is None else f" (seed {seed})")
        return View("", (*_tables_of(self.plan), built), (*notes, *remarks))

    def _remarks(self, seed: str) -> list[str]:
        is_fresh = not self.plan.inherited
        shared = "" if is_fresh else f" {size(self.bytes_shared)} shared with the source,"
        remarks = [f"{size(self.bytes_written)} written,{shared} {self.seconds:.1f} s", short_hashes(f"spec {self.spec_hash}")]
        if is_fresh:
            remarks.append(f"Every parameter is random{seed}. Train the model before use.")
        elif self.untrained:
            start = f"`compose calibrate {shlex.quote(short_path(self.out))} --data TEXTS`"
            remarks.append(
                f"{plural(len(self.untrained), 'tensor')} untrained{seed}: do not expect the source's quality yet. {start} starts "
                "near the source, and `compose distill` also trains."
            )
        return remarks


def build_folder(
    resolved: Resolved,
    source: Source | None,
    out: str | os.PathLike[str],
    *,
    spec_document: Mapping[str, Any],
    dtype: Dtype | None = None,
    seed: int = 0,
    tokenizer: Tokenizer | None = None,
    copy: bool = False,
    hash_contents: bool = False,
    force: bool = False,
    dry_run: bool = False,
    progress: Progress | None = None,
    lolcats: Sequence[str | os.PathLike[str]] = (),
) -> BuildReport:
    """Build ``resolved`` into the folder ``out``, which appears whole or not at all.

    - source: of the weights. None: the spec describes the trunk, and every parameter is fresh.
    - spec_document: the spec as it was read, to be stored.
    - dtype: of every tensor. None: each keeps its own, and without a source all are float32.
    - seed: of the fresh parameters. The same seed leads to the same bytes.
    - tokenizer: for a model without a source, or whose source has none. Its files are copied.
    - copy: copies the source's bytes instead of linking them.
    - hash_contents: reads linked files to note their SHA-256, so that ``verify`` can check each byte of them later; small models
      (``HASHED_ANYWAY``) are hashed in any case.
    - force: replaces a model at ``out``.
    - dry_run: makes the plan and checks, but writes nothing.
    - lolcats: LoLCATs' checkpoints, with the heads' parameters and adapters to merge.

    Raises ``BuildError`` and ``SourceError``; the source is only ever read.
    """
    began = time.perf_counter()
    target = check_output(Path(out), source, force=force)
    beside = student = None
    if source is None:
        trunk = trunk_from(resolved, dtype or "float32", tokenizer)
        plan = make_plan(resolved, trunk)
    else:
        check_merged(source)
        if tokenizer is not None:
            check_tokenizer_of_source(tokenizer.size, source)
        beside = read_values(lolcats, resolved, source) if lolcats else None
        plan = make_plan(resolved, source.trunk, weights_of(source), dtype=dtype, beside=beside)
        plan = plan.model_copy(update={"notes": (*plan.notes, *tokenizer_notes(source.folder, source.trunk.vocabulary_size))})
        trunk = replace(source.trunk, dtype=plan.dtype)
        student = record_of(source)
    on_layers = notes_on_layers(resolved, has_head=spec_document.get("head") is not None)
    plan = plan.model_copy(update={"notes": (*plan.notes, *on_layers)})
    config = config_dict(trunk, resolved, plan.dtype)
    if source is not None and isinstance(trunk, Host):
        _check_host(source, config, plan)
    untrained = find_untrained(plan, source, student)

    def report(files: dict[str, StoredFile], total: int) -> BuildReport:
        shared = sum(file.bytes for file in files.values() if file.how == "linked")
        return BuildReport(
            out=target,
            dry_run=dry_run,
            spec_hash=resolved.hash,
            plan=plan,
            files=files,
            untrained=untrained,
            bytes_written=total - shared,
            bytes_shared=shared,
            seconds=time.perf_counter() - began,
        )

    if dry_run:
        return report({}, 0)
    check_space(target, _bytes_to_write(target, source, plan, copy))
    with whole_or_nothing(target, force=force) as folder:
        fresh = own_parameters(resolved, trunk if source is None and isinstance(trunk, Trunk) else None)
        files = _Writer(folder, source, student, fresh, plan, beside, copy, hash_contents, seed, progress).write()
        if source is not None:
            copy_files(source.folder, source.small_files, folder)
            weight_map = {name: entry.output for name, entry in plan.parameters.items()}
            write_json(folder / INDEX, {"metadata": {"format": "pt", "total_size": plan.total_bytes}, "weight_map": weight_map})
        if tokenizer is not None:
            copy_files(tokenizer.folder, tokenizer.files, folder)
        if source is None and trunk.labels is None:
            write_json(folder / GENERATION_CONFIG, {} if tokenizer is None else tokenizer.special)
        record = Record(
            spec=dict(spec_document),
            resolved=resolved,
            spec_hash=resolved.hash,
            source=None if source is None else describe_source(source, student),
            seed=seed,
            trunk=asdict(trunk),
            plan=plan,
            files=files,
            given={} if beside is None else {str(file): sha256(file) for file in beside.files},
            untrained=untrained,
            parts=list_stored_parts(resolved),
            versions=versions(),
        )
        complete_folder(folder, config, record, target.name)
        total = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    return report(files, total)


def complete_folder(folder: Path, config: Mapping[str, Any], record: Record, name: str) -> Record:
    """Write the documents beside the weights, and check the folder against the plan. Return the record.

    name: of the model, for its card. Raises ``BuildError``.
    """
    write_json(folder / CONFIG, config)
    write_text(folder / STUB, STUB_TEXT)
    write_text(folder / PICTURE, picture(record.resolved, dtype=record.plan.dtype).svg)
    write_text(folder / CARD, model_card(record, name))
    record = record.model_copy(update={"documents": documents_in(folder, record.files)})
    write_json(folder / RECORD, record.model_dump(mode="json"))
    if problems := problems_of(folder, record.resolved, record.plan):
        raise BuildError("The output differs from the plan:\n" + "\n".join(f"  {line}" for line in problems))
    return record


def _check_host(source: Source, config: Mapping[str, Any], plan: Plan) -> None:
    """Raise BuildError unless the plan's tensors are just those of the host's class, for a host of another family."""
    from composer.model.classes import find_uncovered_by_host

    problems = find_uncovered_by_host(config, {name: (entry.shape, entry.dtype) for name, entry in plan.parameters.items()})
    if problems:
        raise BuildError(
            f"The weights of {source.folder} do not fit its config.json, as transformers reads it:\n"
            + "\n".join(f"  {line}" for line in problems[:MOST_PROBLEMS])
        )


def _bytes_to_write(target: Path, source: Source | None, plan: Plan, copy: bool) -> int:
    """Return the bytes of weights that the build writes at least."""
    written = plan.bytes("rewrite") + plan.fresh_bytes
    if source is None:
        return written
    parent = next(parent for parent in target.parents if parent.exists())
    is_elsewhere = source.folder.stat().st_dev != parent.stat().st_dev
    return written + (plan.bytes("link") if copy or is_elsewhere else 0)


@dataclass(frozen=True)
class _Writer:
    """Writes the weights of one build into a folder. student: the record of a source that is itself a student. fresh: the
    parameters that need no source. beside: the values in LoLCATs' files."""

    folder: Path
    source: Source | None
    student: Record | None
    fresh: Mapping[str, Fresh]
    plan: Plan
    beside: LolcatsValues | None
    copy: bool
    hash_contents: bool
    seed: int
    progress: Progress | None

    def write(self) -> dict[str, StoredFile]:
        """Write all weight files. The small file of fresh parameters is first: after a large copy it would wait for the disk."""
        fresh = self._write_fresh()
        shards = {}
        for shard in self.plan.shards:
            if self.source is not None and shard.output is not None:
                write = self._link if shard.action == "link" else self._rewrite
                shards[shard.output] = write(self.source, shard, self.folder / shard.output)
        return {**shards, **fresh}

    def _link(self, source: Source, shard: ShardPlan, target: Path) -> StoredFile:
        origin = source.shards[shard.file]
        placement, digest = link_or_copy(origin.file, target, copy=self.copy, moved=self._byte_counter(target.name, shard.bytes))
        contents = None if self.hash_contents else find_known_sha256(source, self.student, shard.file)
        if contents is None and (self.hash_contents or self.plan.bytes("link") <= HASHED_ANYWAY):
            contents, counts = digest_and_counts(origin)
            refuse_not_finite(origin.file, counts, self.plan.dropped)
        return describe_file(target, placement, origin=origin.file, contents=contents or digest)

    def _rewrite(self, source: Source, shard: ShardPlan, target: Path) -> StoredFile:
        pieces: list[TensorToWrite] = []
        for name, entry in self.plan.inherited.items():
            if entry.file == shard.file:
                tensor = source.tensors[entry.tensor]
                if self.beside is not None and entry.added:
                    pieces.append(merge_piece(name, tensor, entry.dtype, self.beside.products[name]))
                else:
                    pieces.append(inherit_piece(name, tensor, entry.dtype))
        contents = write_shard(target, pieces, self._byte_counter(target.name, shard.bytes))
        return describe_file(target, "rewritten", origin=None, contents=contents)

    def _write_fresh(self) -> dict[str, StoredFile]:
        pieces = [fresh_piece(name, self.fresh[name], entry.dtype, self.seed) for name, entry in self.plan.fresh.items()]
        if self.beside is not None:
            values = self.beside.values
            pieces += [value_piece(name, values[name], entry.shape, entry.dtype) for name, entry in self.plan.from_beside.items()]
        if not pieces:
            return {}
        target = self.folder / self.plan.parameters[pieces[0].name].output
        contents = write_shard(target, pieces, self._byte_counter(target.name, self.plan.fresh_bytes))
        return {target.name: describe_file(target, "written", origin=None, contents=contents)}

    def _byte_counter(self, name: str, total: int) -> Callable[[int], None]:
        """Return a function that adds up the bytes written to one file, and calls ``progress`` with the sum."""
        done = 0

        def count_bytes(count: int) -> None:
            nonlocal done
            done += count
            if self.progress is not None:
                self.progress(name, done, total)

        return count_bytes


def _tables_of(plan: Plan) -> list[Table]:
    """Return the use of each tensor; tensors that differ only in their layer share a line."""
    kinds = {"inherited": plan.inherited, "given": plan.from_beside, "fresh": plan.fresh, "dropped": plan.dropped}
    counts = tuple((use, plural(len(some), "tensor"), f"{_numbers(some)} numbers") for use, some in kinds.items() if some)
    tables = [Table("Plan", ("", "", ""), counts)]
    heads = {name: entry for name, entry in plan.inherited.items() if is_composed(name)}
    lists: dict[str, Mapping[str, Shaped]] = {
        "Fresh": plan.fresh,
        "Given": plan.from_beside,
        "Kept of the source's own heads": heads,
    }
    for reason in {entry.reason: None for entry in plan.dropped.values()}:
        lists[f"Dropped, as {reason}"] = {name: entry for name, entry in plan.dropped.items() if entry.reason == reason}
    for title, some in lists.items():
        if some:
            tables.append(Table(f"{title}:", ("", "", ""), _group(some), range(1), under=True))
    if plan.shards:
        rows = tuple((shard.file, ACTIONS[shard.action], f"({shard.reason})") for shard in plan.shards)
        tables.append(Table("Files of the source:", ("", "", ""), rows, under=True))
    return tables


def _group(entries: Mapping[str, Shaped]) -> tuple[tuple[str, str, str], ...]:
    """Count, shape and name; names that differ only in the number of their layer are one row."""
    layers: dict[tuple[str, str, str], list[int]] = {}
    for name, entry in entries.items():
        layer = re.search(r"\blayers\.(\d+)\.", name)
        start, end = layer.span(1) if layer else (len(name), len(name))
        layers.setdefault((name[:start], name[end:], str(list(entry.shape))), []).append(int(name[start:end] or -1))
    return tuple(
        (f"{len(layer_numbers)} ×", shape, first + ("{" + ranges(layer_numbers, "-", ",") + "}" if last else "") + last)
        for (first, last, shape), layer_numbers in layers.items()
    )


def _numbers(entries: Mapping[str, Shaped]) -> str:
    return quantity(sum(math.prod(entry.shape) for entry in entries.values()))
