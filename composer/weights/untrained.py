"""The parameters that have not been trained yet: in a rebuild, they stay untrained, although they are inherited."""

from __future__ import annotations

from composer.files import sha256
from composer.weights.plan import Plan
from composer.weights.record import Record
from converters.source import Source


def untrained(source: Source, student: Record | None, plan: Plan) -> tuple[str, ...]:
    """The fresh parameters, and a student's untrained ones in files that have not changed since its build.

    student: the record of a source that is one. Reads such files whole: they hold heads, not trunks.
    """
    kept: list[str] = []
    as_built: dict[str, bool] = {}
    for name, entry in plan.inherited.items():
        if student is None or name not in student.untrained:
            continue
        if entry.file not in as_built:
            stored = student.files.get(entry.file)
            as_built[entry.file] = stored is not None and stored.sha256 == sha256(source.shards[entry.file].file)
        if as_built[entry.file]:
            kept.append(name)
    return (*plan.fresh, *kept)
