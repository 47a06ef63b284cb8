"""A selection from beginning to end: a student learns the teacher's attention in every layer, and each layer is scored."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from composer.errors import SelectionError
from composer.files import failing_as, visible_in, write_whole
from composer.locks import working_in
from composer.selection.choice import best, candidates, count_within, keeping, state_bytes
from composer.selection.plot import draw
from composer.selection.report import By, Selection
from composer.selection.scores import divergence_with, score_layers
from composer.spec.document import Spec
from composer.spec.writing import to_yaml
from composer.training.measure import some
from composer.training.rows import rows_of
from composer.training.run import TrainingOptions, load_student
from composer.training.student import read_student
from composer.training.teacher import open_teacher

SELECTION, SPEC, PICTURE = "selection.json", "spec.yaml", "layers.png"
BUILT, STUDENT = "built", "student"
"""The folders of the student before training, and after."""


@dataclass(frozen=True, kw_only=True)
class SelectionOptions:
    """keep: layers, or None for as many as ``budget`` bytes of state at ``sequence`` tokens allow, though never all. rows: held-out
    rows to score on at most."""

    keep: int | None
    budget: int | None
    sequence: int
    by: By
    rows: int


def select_layers(spec: Spec, student: Path, out: Path, training: TrainingOptions, options: SelectionOptions) -> Selection:
    """Scores the layers of a student beside its teacher, on held-out rows, and writes what was found into ``out``.

    spec: what the student was built from. Raises SelectionError, TrainingError and DataError.
    """
    described = read_student(student, ())
    teacher = open_teacher(described.record, training.teacher)
    layers, free = len(described.record.resolved.layers), candidates(described.record.resolved)
    _, held_out = rows_of(described, training)
    assert held_out is not None, "the options hold a share out"
    rows = some(held_out, options.rows)
    training.tell(f"Scoring {layers} layers on {len(rows)} held-out rows.")
    model, taught = load_student(described, training).eval(), teacher.load(training.device, training.backend)
    apart, scores = score_layers(model, taught, rows)
    ranked = [one for one in scores if one.layer in free]
    document = spec.model_dump(mode="json", exclude_unset=True)

    def bytes_of(count: int) -> int:
        return state_bytes(spec, best(ranked, options.by, count), layers, teacher.source.folder, options.sequence)

    count, all_fit = options.keep, False
    if count is None:
        assert options.budget is not None, "one of the two is said"
        count = count_within(bytes_of, len(free) - 1, options.budget)
        all_fit = bytes_of(len(free)) <= options.budget
    keep = best(ranked, options.by, count)
    kept_apart, tokens = divergence_with(model, taught, rows, keep)
    name = f"{spec.name}-keep-{count}"
    found = Selection(
        name=spec.name,
        teacher=teacher.reference,
        by=options.by,
        rows=len(rows),
        tokens=tokens,
        scores=scores,
        keep=keep,
        divergence=apart,
        kept_divergence=kept_apart,
        sequence=options.sequence,
        state_bytes=bytes_of(count),
        all_fit=all_fit,
        document={**keeping(document, keep, layers), "name": name},
        out=out,
    )
    _write(found)
    return found


def _write(found: Selection) -> None:
    """The spec, the report and the picture. Raises SelectionError."""
    clear(found.out)
    with failing_as(SelectionError, f"{found.out} cannot be written to", "Choose another --out."):
        write_whole(found.out / SPEC, to_yaml(found.document))
        write_whole(found.out / SELECTION, json.dumps(found.model_dump(mode="json", exclude={"out"}), indent=2) + "\n")
        draw(found, found.out / PICTURE)


def clear(folder: Path) -> None:
    """Removes what an earlier selection has found, but for its student. Raises SelectionError."""
    with failing_as(SelectionError, f"The selection in {folder} cannot be removed", "Choose another --out."):
        for name in (SELECTION, SPEC, PICTURE):  # the first of them says that a selection has ended there
            (folder / name).unlink(missing_ok=True)


@contextmanager
def selection_folder(folder: Path, *, force: bool) -> Iterator[None]:
    """Makes the folder of a selection, and locks it for the block. force: replace the selection that is there.

    Raises SelectionError where other things stand in it.
    """
    with working_in(folder, SelectionError, "Another selection is at work on"):
        if (folder / SELECTION).is_file() and not force:
            raise SelectionError(f"{folder} holds a selection. Choose another --out, or replace it: --force.")
        known = {SELECTION, SPEC, PICTURE, STUDENT, f"{STUDENT}.run", BUILT}
        if any(path.name not in known for path in visible_in(folder)):
            raise SelectionError(f"{folder} holds files that no selection wrote. Move them away, or choose another --out.")
        yield
