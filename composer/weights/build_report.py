"""The report of a build in words: the use of each tensor, and the files that were written."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from composer.spec.inherit import shown
from composer.tables import Table, View
from composer.words import plural, quantity, ranges, short_hashes, size
from converters.canonical import is_composed
from converters.coverage import Shaped

if TYPE_CHECKING:
    from composer.weights.build import BuildReport
    from composer.weights.plan import Plan

DOING = {"link": "kept as it is", "rewrite": "rewritten", "leave": "left behind"}


def view_of(report: BuildReport, seed: int | None = None) -> View:
    """The plan, and the files where it was carried out. seed: of the fresh parameters, to be named."""
    notes = tuple(f"Note: {note}" for note in report.plan.notes)
    if report.dry_run:
        nothing = f"Nothing was written; without --dry-run it would be {shown(report.out)}"
        return View("", tuple(_of_plan(report.plan)), (*notes, nothing))
    files = tuple(
        (name, size(file.bytes), file.how + (f" from {Path(file.origin).name}" if file.origin else ""))
        for name, file in report.files.items()
    )
    built = Table(f"Built {shown(report.out)}", ("", "", ""), files, range(1, 2))
    return View("", (*_of_plan(report.plan), built), (*notes, *_remarks(report, "" if seed is None else f" (seed {seed})")))


def _of_plan(plan: Plan) -> list[Table]:
    """The use of each tensor; tensors that differ only in their layer share a line."""
    kinds = {"inherited": plan.inherited, "given": plan.given, "fresh": plan.fresh, "dropped": plan.dropped}
    counts = tuple((what, plural(len(some), "tensor"), f"{_numbers(some)} numbers") for what, some in kinds.items() if some)
    tables = [Table("Plan", ("", "", ""), counts)]
    heads = {name: entry for name, entry in plan.inherited.items() if is_composed(name)}
    lists: dict[str, Mapping[str, Shaped]] = {"Fresh": plan.fresh, "Given": plan.given, "Kept of the source's own heads": heads}
    for reason in {entry.reason: None for entry in plan.dropped.values()}:
        lists[f"Dropped, as {reason}"] = {name: entry for name, entry in plan.dropped.items() if entry.reason == reason}
    for title, some in lists.items():
        if some:
            tables.append(Table(f"{title}:", ("", "", ""), _grouped(some), range(1), under=True))
    if plan.shards:
        rows = tuple((shard.file, DOING[shard.action], f"({shard.reason})") for shard in plan.shards)
        tables.append(Table("Files of the source:", ("", "", ""), rows, under=True))
    return tables


def _remarks(report: BuildReport, seed: str) -> list[str]:
    fresh = not report.plan.inherited
    shared = "" if fresh else f" {size(report.bytes_shared)} shared with the source,"
    remarks = [f"{size(report.bytes_written)} written,{shared} {report.seconds:.1f} s", short_hashes(f"spec {report.spec_hash}")]
    if fresh:
        remarks.append(f"Every parameter is random{seed}: it says nothing until it is trained.")
    elif report.untrained:
        remarks.append(f"{plural(len(report.untrained), 'tensor')} untrained{seed}: do not expect the source's quality yet.")
    return remarks


def _grouped(entries: Mapping[str, Shaped]) -> tuple[tuple[str, str, str], ...]:
    """Count, shape and name; names that differ only in the number of their layer are one row."""
    layers: dict[tuple[str, str, str], list[int]] = {}
    for name, entry in entries.items():
        found = re.search(r"\blayers\.(\d+)\.", name)
        start, end = found.span(1) if found else (len(name), len(name))
        layers.setdefault((name[:start], name[end:], str(list(entry.shape))), []).append(int(name[start:end] or -1))
    return tuple(
        (f"{len(where)} ×", shape, first + ("{" + ranges(where, "-", ",") + "}" if last else "") + last)
        for (first, last, shape), where in layers.items()
    )


def _numbers(entries: Mapping[str, Shaped]) -> str:
    return quantity(sum(math.prod(entry.shape) for entry in entries.values()))
