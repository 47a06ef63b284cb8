"""``select``: which layers of a source should keep their own attention."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from shutil import rmtree
from typing import TYPE_CHECKING, ClassVar

from composer.arguments import Reference
from composer.building import BuildOptions, run_build
from composer.commands.distill import Watched, bar_of
from composer.data.loading import check_references
from composer.devices import room_for
from composer.errors import ComposerError, SelectionError, translate_errors
from composer.notices import inform, warn_user
from composer.options import convert_options, function_of, option, options_class
from composer.progress import progress_callback, silent_transformers
from composer.selection.choice import another_source, candidates, count_within, state_bytes
from composer.selection.report import By
from composer.shared_options import (
    OUT,
    CountedAt,
    FromSource,
    OfData,
    OfSpec,
    OnDevice,
    Overriding,
    Replacing,
    Seeded,
    WithBackend,
    to_optional_path,
    to_path,
)
from composer.spec.document import Spec
from composer.spec.inherit import short_path
from composer.spec.loading import load_spec, resolve_spec
from composer.spec.resolve import Resolved
from composer.training.student import read_student, stages_of
from composer.weights.config import dimensions
from composer.weights.record import read_record
from composer.weights.sources import describe_model, open_model
from composer.words import plural

if TYPE_CHECKING:
    from composer.selection.report import Selection
    from composer.training.options import TrainingOptions

ROWS = 16
"""Held-out rows to score on. Each row needs two passes for each layer."""


@options_class
class SelectOptions(Replacing, WithBackend, OnDevice, Seeded, Overriding, CountedAt, OfData, Watched, FromSource, OfSpec):
    """Find the layers that should keep their own attention.

    A student with the spec's heads in every layer first learns the source's attention (OUT/student), as the spec's recipe states.
    Then each layer is scored. OUT/spec.yaml is the spec that keeps the best layers; build and distill it as any other. The same
    call again continues an interrupted selection.
    """

    error: ClassVar[type[ComposerError]] = SelectionError
    example: ClassVar[str] = 'composer.select("lawcat", "teacher", "texts.jsonl", "selected", keep=4).keep'
    out: Path = option("Folder for the spec, the scores and the student.", converter=to_path, kw_only=False, **OUT)
    keep: int | None = option("Layers that keep the source's attention.", default=None, least=1, metavar="N")
    budget: int | None = option(
        "Instead of --keep: as many layers as fit into this number of bytes of state.", default=None, least=1, metavar="BYTES"
    )
    by: By = option(
        "The score: what restoring the layer wins, what replacing it alone loses (both KL to the source), or the error of its "
        "attention.",
        default="restored",
    )
    rows: int = option("Largest number of held-out rows to score on.", default=ROWS, least=1, metavar="N")
    student: Path | None = option(
        "A trained student of SPEC, such as OUT/student. Nothing is trained then.",
        default=None,
        converter=to_optional_path,
        metavar="FOLDER",
    )

    def check(self) -> None:
        if self.keep is not None and self.budget is not None:
            raise SelectionError("--keep and --budget exclude each other: leave one of them out.")
        if self.keep is None and self.budget is None:
            raise SelectionError(
                "Neither --keep nor --budget is set. Set --keep N, the number of layers to keep, or --budget "
                "BYTES, the largest size of the state."
            )
        if not self.held_out and not self.share:
            raise SelectionError("Nothing is held out, so there is nothing to score on: set --held-out, or a --share above 0.")


@translate_errors
def run_select(options: SelectOptions) -> Selection:
    source, loaded, folder = options.source, load_spec(options.spec, options.overrides), options.out.expanduser()
    resolved = resolve_spec(loaded, dimensions(describe_model(source).trunk))  # report mistakes before imports that need seconds
    check_possible(loaded, resolved, source, options.keep, options.budget, options.sequence)
    student = None if options.student is None else options.student.expanduser()
    if student is not None:
        check_student(student, resolved, source)
    check_references((*options.data, *options.held_out))
    from composer.selection.runner import STORE, SelectionOptions, SelectionSettings, select_layers
    from composer.training.options import TrainingOptions

    training = convert_options(
        options,
        TrainingOptions,
        teacher=source,
        force=False,
        warn=warn_user if options.tell is inform else options.tell,
        again="run the same command without --force" if options.force else "run the same command again",
    )
    fewer = (
        f"On a machine with more memory, the same command continues from {short_path(folder)}. Shorter rows (recipe.sequence) need "
        "less memory, and need --force to start again."
    )
    room = room_for(f"on {options.device}", fewer, SelectionError)
    with (
        STORE.hold(folder, resume=True, force=options.force),
        progress_callback(options.progress, bar_of) as watch,
        room,
        silent_transformers(),
    ):
        if student is None:
            student = _learn(loaded, source, folder, replace(training, watch=watch), force=options.force)
        else:
            STORE.begin(folder, SelectionSettings(student=str(student)), force=options.force)
        return select_layers(loaded, student, folder, training, convert_options(options, SelectionOptions))


select = function_of(SelectOptions, run_select)


def _learn(spec: Spec, source: Reference, folder: Path, training: TrainingOptions, *, force: bool) -> Path:
    """Train the student of all layers in the folder of a selection, resume its training, or reuse a finished one.

    Raises SelectionError, TrainingError, DataError and BuildError.
    """
    from composer.selection.runner import BUILT, STORE, STUDENT, settings_of
    from composer.training.distill import distill

    student, run, built = folder / STUDENT, folder / f"{STUDENT}.run", folder / BUILT
    run_build(BuildOptions(spec, source, built, seed=training.seed, force=True))
    described = read_student(built, ())
    stages_of(described.record, described.recipe, "transfer")
    if force:  # before the new settings are written, which they would seem to belong to
        for replaced in (student, run):
            rmtree(replaced, ignore_errors=True)
    STORE.begin(folder, settings_of(described, training), force=force)
    is_stopped = run.is_dir()
    if student.is_dir() and not is_stopped:
        training.tell(f"{short_path(student)} has learned already.")
    else:
        # The student's record names its teacher, the source. A student beside a stopped run may be replaced.
        distill(described, student, replace(training, teacher=None, resume=is_stopped, force=True), which="transfer")
    rmtree(built)
    return student


def check_possible(spec: Spec, resolved: Resolved, source: Reference, keep: int | None, budget: int | None, sequence: int) -> None:
    """Raise SelectionError if there are not so many layers to keep, or if not one of them fits into the budget."""
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
    """Raise SelectionError if a folder has no student of this spec on this source, wherever the source was at that time."""
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
