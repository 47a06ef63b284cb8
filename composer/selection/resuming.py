"""Checks that a stopped selection's student has learned as this selection's would, so that it need not be trained again."""

from __future__ import annotations

from pathlib import Path

from composer.errors import SelectionError
from composer.spec.inherit import shown
from composer.training.rows import rows_of
from composer.training.run import TrainingOptions
from composer.training.student import read_student
from composer.weights.record import Record, StoredFile

REWRITTEN = "rewritten"
"""The word in a record for a file that training has changed."""


def check_learned(student: Path, built: Path, training: TrainingOptions) -> None:
    """Raises SelectionError where the student was trained with other settings or data than training ``built`` now would have; also
    TrainingError and DataError. built: the student before training."""
    before, then = read_student(built, ()), read_student(student, ()).record
    rows, _ = rows_of(before, training)
    stages = then.training
    last = stages[-1] if len(stages) == 1 else None
    transfer = before.recipe.transfer
    assert transfer is not None, "a student without transfer has been refused"
    same = {
        "spec": then.resolved.hash == before.record.resolved.hash,
        "source": _same_files(before.record, then),
        "recipe": last is not None and (last.stage, last.recipe) == ("transfer", transfer.model_dump(mode="json")),
        "data": last is not None and last.data.get("hash") == rows.hash,
        "seed": last is not None and (then.seed, last.seed) == (before.record.seed, training.seed),
        "--backend": last is not None and last.backend == training.backend,
    }
    other = [what for what, is_same in same.items() if not is_same]
    if other:
        what = " and another ".join(other)
        raise SelectionError(
            f"{shown(student)}, of a selection that was stopped, has learned with another {what}. Say the same as then; "
            f"take it as it is: --student {shown(student)}; or begin anew with --force."
        )


def _same_files(before: Record, then: Record) -> bool:
    """Whether the files that training did not change have the same contents in both."""
    if before.files.keys() != then.files.keys():
        return False
    alone = [name for name, stored in then.files.items() if stored.how != REWRITTEN]
    return all(_same(before.files[name], then.files[name]) for name in alone)


def _same(one: StoredFile, other: StoredFile) -> bool:
    """Whether two files are equal, by SHA-256 where both are known, else by time stamps."""
    if (one.bytes, one.header_sha256) != (other.bytes, other.header_sha256):
        return False
    if one.sha256 is not None and other.sha256 is not None:
        return one.sha256 == other.sha256
    return one.modified_ns == other.modified_ns
