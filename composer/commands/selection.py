"""``select``: which layers of a source should keep their own attention."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from shutil import rmtree
from typing import TYPE_CHECKING, get_args

from composer.api import SpecLike, build_folder, load_spec, resolve_spec
from composer.arguments import Reference, check_known, several
from composer.commands.training import bar_of
from composer.data.loading import SHARE, check_references
from composer.devices import room_for
from composer.errors import SelectionError, in_words
from composer.graph.lowering import AUTO
from composer.notices import inform, warn_user
from composer.numbers import TokenCount, check_count, check_seed, tokens_of
from composer.progress import progress_callback, silent_transformers
from composer.selection.choice import candidates, count_within, state_bytes
from composer.selection.origin import another_source
from composer.selection.report import By
from composer.spec.document import Spec
from composer.spec.inherit import shown
from composer.spec.overrides import Overrides
from composer.spec.resolve import Resolved
from composer.training.student import read_student, stages_of
from composer.weights.dimensions import dimensions
from composer.weights.record import read_record
from composer.weights.sources import describe_model, open_model
from composer.words import plural

if TYPE_CHECKING:
    from composer.selection.report import Selection
    from composer.training.loop import StepProgress
    from composer.training.run import TrainingOptions

ROWS = 16
"""Held-out rows to score on; each goes twice through the model for each of its layers."""
SEQUENCE = 4096


@in_words
def select(
    spec: SpecLike,
    source: Reference,
    data: str | Sequence[str],
    out: Reference,
    *,
    keep: int | None = None,
    budget: int | None = None,
    sequence: TokenCount = SEQUENCE,
    by: By = "restored",
    rows: int = ROWS,
    held_out: str | Sequence[str] = (),
    share: float = SHARE,
    overrides: Overrides = (),
    seed: int = 0,
    device: str = "cpu",
    backend: str = AUTO,
    student: Reference | None = None,
    force: bool = False,
    progress: bool | Callable[[StepProgress], None] = False,
    tell: Callable[[str], None] | None = None,
) -> Selection:
    """Scores each layer of a source by what its own attention is worth in a student, and writes a spec that keeps the best.

    The student is built from ``source`` with the spec's heads in every layer, and learns the source's attention as the spec's
    recipe says (``transfer``); it stays in ``out/student``. The spec is ``out/spec.yaml``, to be built and distilled in full.

    - keep: how many layers; or budget: bytes of state at ``sequence`` tokens (``"4k"`` is 4,096), and as many layers as they allow.
    - by: the score, ``"restored"``, ``"swapped"`` or ``"error"``. rows: of the held-out data, to score on at most.
    - data, held_out, share, seed, device, backend: as ``distil`` has them. overrides: of the spec and its recipe.
    - student: one of this spec that has learned already, such as ``out/student`` of an earlier selection; nothing is trained then.
    - force: replace the selection that stands at ``out``. One that was stopped is gone on with otherwise, from wherever it was.
    - progress: ``True`` shows a bar; or what is to be called after each step of training. tell: called with messages;
      left out, they are those of the log ``composer``.

    Raises ComposerError.

        composer.select("lawcat", "teacher", "texts.jsonl", "selected", keep=4).keep
    """
    check_known("--by", by, get_args(By))
    for option, said in (("--rows", rows), ("--keep", keep), ("--budget", budget)):
        if said is not None:
            check_count(option, said, SelectionError)
    check_seed(seed, SelectionError)
    tokens = tokens_of(sequence, "sequence (--seq)", SelectionError)
    if (keep is None) == (budget is None):
        raise SelectionError("Say how many layers to keep, or how many bytes the state may take: --keep N, or --budget BYTES.")
    if not several(held_out) and not share:
        raise SelectionError("Nothing is held out, so there is nothing to score on: say --held-out, or a --share above 0.")
    loaded, folder = load_spec(spec, overrides), Path(out).expanduser()
    resolved = resolve_spec(loaded, dimensions(describe_model(source).trunk))  # report mistakes before imports that take seconds
    check_possible(loaded, resolved, source, keep, budget, tokens)
    given = None if student is None else Path(student).expanduser()
    if given is not None:
        check_student(given, resolved, source)
    check_references((*several(data), *several(held_out)))
    from composer.selection.runner import SelectionOptions, select_layers, selection_folder
    from composer.training.run import TrainingOptions

    training = TrainingOptions(
        data=several(data),
        held_out=several(held_out),
        share=share,
        teacher=str(source),
        seed=seed,
        device=device,
        backend=backend,
        tell=tell or inform,
        warn=tell or warn_user,
        again="say the same again without --force" if force else "say the same again",
    )
    fewer = (
        f"Where there is more, the same command goes on with what is in {shown(folder)}. Shorter rows (recipe.sequence) take "
        "less, and start anew: --force."
    )
    room = room_for(f"on {device}", fewer, SelectionError)
    with selection_folder(folder, force=force), progress_callback(progress, bar_of) as watch, room, silent_transformers():
        if given is None:
            given = _learned(loaded, source, folder, replace(training, watch=watch), force=force)
        options = SelectionOptions(keep=keep, budget=budget, sequence=tokens, by=by, rows=rows)
        return select_layers(loaded, given, folder, training, options)


def _learned(spec: Spec, source: Reference, folder: Path, training: TrainingOptions, *, force: bool) -> Path:
    """Trains the student of all layers in the folder of a selection, resumes its training, or reuses a finished one.

    Raises SelectionError, TrainingError, DataError and BuildError.
    """
    from composer.selection.resuming import check_learned
    from composer.selection.runner import BUILT, STUDENT, clear
    from composer.training.distill import distill

    student, built = folder / STUDENT, folder / BUILT
    stopped = (folder / f"{STUDENT}.run").is_dir() and not force
    build_folder(spec, source, built, seed=training.seed, force=True)
    asked = read_student(built, ())
    stages_of(asked.record, asked.recipe, "transfer")
    if student.is_dir() and not stopped and not force:
        check_learned(student, built, training)
        training.tell(f"{shown(student)} has learned already.")
    else:
        # Delete replaced files first, so that files beside a run belong to this selection and it can be resumed.
        clear(folder)
        # The student's record names its teacher, the source. A student beside a stopped run may be replaced.
        distill(asked, student, replace(training, teacher=None, resume=stopped, force=True), which="transfer")
    rmtree(built)
    return student


def check_possible(spec: Spec, resolved: Resolved, source: Reference, keep: int | None, budget: int | None, sequence: int) -> None:
    """Raises SelectionError where there are not so many layers to keep, or where not one of them fits into the budget."""
    free = candidates(resolved)
    if len(free) < 2:
        what = plural(len(free), "layer")
        raise SelectionError(f"{spec.name} has other heads than the source in {what}: there is nothing to choose among.")
    if keep is not None and keep >= len(free):
        raise SelectionError(
            f"--keep {keep}: {plural(len(free), 'layer')} of {spec.name} have other heads than the source, and with all kept "
            "it is the source; keep fewer."
        )
    if budget is not None and free:
        layers = resolved.dimensions.layers
        cheapest = min(free, key=lambda layer: state_bytes(spec, (layer,), layers, source, sequence))
        count_within(lambda count: state_bytes(spec, (cheapest,)[:count], layers, source, sequence), 1, budget)


def check_student(folder: Path, resolved: Resolved, source: Reference) -> None:
    """Raises SelectionError where a folder holds no student of this spec on this source, wherever the source stood then."""
    record = read_record(folder) if folder.is_dir() else None
    if record is None:
        what = "it is not a built model"
    elif record.resolved.hash != resolved.hash:
        what = f"it is of {record.resolved.name}, with another hash"
    else:
        what = another_source(folder, record, open_model(source))
    if what is not None:
        raise SelectionError(
            f"--student {folder}: no student of {resolved.name} on this source, {what}. Leave it out to train one."
        )
