"""Whether a student was built from a source, wherever that stands now; nothing here needs torch."""

from __future__ import annotations

import filecmp
from pathlib import Path

from composer.errors import SelectionError
from composer.files import failing_as
from composer.weights.record import Record
from converters.source import Source


def another_source(student: Path, record: Record, source: Source) -> str | None:
    """What tells the source of a student from this one, in words; None where nothing does.

    Weight files that the student took over as they are must be equal to the source's: same size and time stamp, or same bytes.
    Nothing is known of files that training wrote anew. Raises SelectionError where a file cannot be read.
    """
    if record.source is None:
        return "it was built from nothing"
    whence = f"it was built from {record.source.repo_id or record.source.folder}"
    if record.source.config_sha256 != source.config_sha256:
        return f"{whence}, with another config.json"
    for shard in record.plan.shards:
        stored = record.files.get(shard.output or "")
        if stored is None or stored.origin is None:
            continue
        there = source.shards.get(shard.file)
        with failing_as(SelectionError, f"The weights of {student} and of {source.folder} cannot be compared"):
            if there is None or not filecmp.cmp(student / str(shard.output), there.file):
                return f"{whence}, with other weights in {shard.file}"
    return None
