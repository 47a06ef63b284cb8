"""What a build says of itself: what became of the tensors, and what was written."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

from composer.spec.inherit import shown
from composer.tables import Table, View
from composer.words import plural, quantity, short_hashes, size

if TYPE_CHECKING:
    from composer.weights.build import BuildReport


def view_of(report: BuildReport) -> View:
    """Tensors by where they come from, files, and what is untrained."""
    plan = report.plan
    kinds = {"inherited": plan.inherited, "given": plan.given, "fresh": plan.fresh, "dropped": plan.dropped}
    tensors = tuple(
        (kind, f"{len(some):,}", quantity(sum(math.prod(entry.shape) for entry in some.values())))
        for kind, some in kinds.items()
        if some
    )
    files = tuple(
        (name, size(file.bytes), file.how + (f" from {Path(file.origin).name}" if file.origin else ""))
        for name, file in report.files.items()
    )
    tables = [Table("", ("", "tensors", "numbers"), tensors, range(1, 3))]
    if files:
        tables.append(Table("", ("file", "size", ""), files, range(1, 2)))
    notes = [short_hashes(f"spec {report.spec_hash}"), *plan.notes]
    if not report.dry_run:
        notes.append(f"{size(report.bytes_written)} written, {size(report.bytes_shared)} shared with the source")
    if report.untrained:
        notes.append(f"{plural(len(report.untrained), 'tensor')} untrained: do not expect the quality of a trained model yet.")
    did = f"A plan for {shown(report.out)}; nothing was written" if report.dry_run else f"Built {shown(report.out)}"
    return View(did, tuple(tables), tuple(notes))
