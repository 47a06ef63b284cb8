"""``select``: which layers or key heads of a source should keep their own attention."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, cast

from composer.commands.distill import ProgressOptions
from composer.data.loading import check_references
from composer.errors import ComposerError, SelectionError, translate_errors
from composer.options.arguments import ByteCount, CountOrShare, Reference, read_bytes, read_part
from composer.options.classes import function_of, option, options_class, options_of
from composer.options.command import Screen, command
from composer.options.shared import (
    OUT,
    BackendOption,
    DataOptions,
    DeviceOption,
    ForceOption,
    RequiredSource,
    SeedOption,
    SequenceOption,
    SetOption,
    SpecArgument,
    reads,
    to_optional_path,
    to_path,
    to_texts,
)
from composer.reporting.progress import progress_callback, silent_transformers
from composer.reporting.terminal import heading, print_result
from composer.reporting.words import plural
from composer.selection.choice import (
    another_source,
    candidate_heads,
    candidates,
    count_within,
    least_heads,
    rank_heads,
    state_bytes,
    subject_of,
)
from composer.selection.report import By, Selection, TokensScored
from composer.spec.document import Spec
from composer.spec.inherit import short_path
from composer.spec.loading import load_spec, resolve_spec
from composer.spec.resolve import Resolved
from composer.system.devices import room_for
from composer.system.notices import inform, warn_user
from composer.training.screen import training_bar, training_steps
from composer.weights.config import dimensions
from composer.weights.record import read_record
from composer.weights.sources import describe_model, open_model

if TYPE_CHECKING:
    from composer.selection.report import HeadSelection, LayerBy
    from composer.training.options import TrainingOptions

ROWS = 16
"""Held-out rows to score on. Each row needs two passes for each layer."""


TASKS = "passkey,multikey,multivalue,niah-single-2,niah-single-3,niah-multikey-1,niah-multiquery,recall,babilong-qa1"
"""Numbers, UUIDs, words and names, one and several at a time: gates that learn on numbers alone keep the heads for numbers."""
STEPS = 60
OF_HEADS = ("gates", "ablated", "patched")
"""Scores of key heads that layers do not have."""
WITH_TOKENS = ("ablated", "restored", "swapped")
"""Scores of key heads that compare the tokens of --score."""


@reads(str)
def to_optional_bytes(value: ByteCount | None) -> int | None:
    return None if value is None else read_bytes(value)


@reads(str)
def to_optional_part(value: CountOrShare | None) -> int | float | None:
    return None if value is None else read_part(value)


@options_class
class SelectOptions(
    SetOption,
    ForceOption,
    BackendOption,
    DeviceOption,
    SeedOption,
    SequenceOption,
    DataOptions,
    ProgressOptions,
    RequiredSource,
    SpecArgument,
):
    """Find layers, or key heads, that should keep their own attention.

    Layers: a student with the spec's heads in every layer first learns the source's attention (OUT/student), as the spec's recipe
    states. Then each layer is scored. Key heads (--heads): a gate for each mixes the source's attention with a window, or with the
    trained heads of --student, and the gates alone learn; or each has another score (--by). OUT/spec.yaml is the spec that keeps
    the best; build and distill it as any other. The same call again continues an interrupted selection.
    """

    error: ClassVar[type[ComposerError]] = SelectionError
    example: ClassVar[str] = 'composer.select("lawcat", "teacher", "texts.jsonl", "selected", keep=4).keep'
    out: Path = option("Folder for the spec, the scores and the student.", converter=to_path, kw_only=False, **OUT)
    keep: int | float | None = option(
        "Layers, or key heads, that keep the source's attention: a number, or a share such as 15%.",
        default=None,
        converter=to_optional_part,
        metavar="N",
    )
    budget: int | None = option(
        "Instead of --keep: as many as fit into this number of bytes of state, such as 6MiB.",
        default=None,
        converter=to_optional_bytes,
        metavar="BYTES",
    )
    rows: int = option("Largest number of held-out rows to score on.", default=ROWS, minimum=1, metavar="N")
    by: By | None = option(
        "The score. Left out, restored, and with --heads gates. restored: what restoring the layer wins. swapped: what replacing "
        "it alone loses (both KL to the source). error: the error of its attention. Only with --heads: gates, which have learned; "
        "ablated: what setting its output to 0 loses; patched: the share of an answer that its output carries.",
        default=None,
    )
    score: TokensScored | None = option(
        "With --heads: the tokens over which ablated, restored and swapped compare: answers of the tasks, text, or both. Left out, "
        "answers.",
        default=None,
    )
    least_per_layer: int | None = option(
        "With --heads: the least number of key heads that keep the source's attention in each layer.",
        default=None,
        minimum=1,
        metavar="N",
    )
    student: Path | None = option(
        "A trained student of SPEC, such as OUT/student. Nothing is trained then but the gates of --heads.",
        default=None,
        converter=to_optional_path,
        metavar="FOLDER",
    )
    heads: bool = option("Choose key heads in place of layers.", default=False)
    tasks: tuple[str, ...] = option(
        f"With --heads: tasks whose needles the gates learn to find, each followed by its options. Left out: {TASKS}. May be "
        "repeated.",
        default=(),
        converter=to_texts,
        metavar="TASK,…",
    )
    steps: int | None = option(
        f"With --heads: steps of one row in which the gates learn. Left out, {STEPS}.", default=None, minimum=1, metavar="N"
    )

    def check(self) -> None:
        if self.keep is not None and self.budget is not None:
            raise SelectionError("--keep and --budget exclude each other: leave one of them out.")
        if self.keep is None and self.budget is None:
            noun = "key heads" if self.heads else "layers"
            raise SelectionError(
                f"Neither --keep nor --budget is set. Set --keep N, the number of {noun} to keep, or --budget "
                "BYTES, the largest size of the state."
            )
        if not self.held_out and not self.share:
            raise SelectionError("Nothing is held out, so there is nothing to score on: set --held-out, or a --share above 0.")
        if self.by in OF_HEADS and not self.heads:
            raise SelectionError(f"--by {self.by} is for key heads: add --heads, or choose another score.")
        for name, value in (
            ("--tasks", self.tasks),
            ("--steps", self.steps),
            ("--score", self.score),
            ("--least-per-layer", self.least_per_layer),
        ):
            if value and not self.heads:
                raise SelectionError(f"{name} is for the selection of key heads: add --heads, or leave it out.")
        criterion = self.by or "gates"
        if self.steps and criterion != "gates":
            raise SelectionError(f"--steps is for --by gates, and the score is {criterion}: nothing learns. Leave --steps out.")
        if self.score and criterion not in WITH_TOKENS:
            raise SelectionError(f"--score is for --by {', '.join(WITH_TOKENS)}, and the score is {criterion}. Leave --score out.")


@translate_errors
def run_select(options: SelectOptions) -> Selection | HeadSelection:
    source, loaded = options.source, load_spec(options.spec, options.overrides)
    resolved = resolve_spec(loaded, dimensions(describe_model(source).trunk))  # report mistakes before imports that need seconds
    student = None if options.student is None else options.student.expanduser()
    options = replace(options, keep=check_possible(loaded, resolved, options), student=student)
    if student is not None:
        check_student(student, resolved, source)
    check_references((*options.data, *options.held_out))
    return _select_heads(options, loaded) if options.heads else _select_layers(options, loaded)


def _select_layers(options: SelectOptions, loaded: Spec) -> Selection:
    from composer.selection.layers import STORE, SelectionOptions, SelectionSettings, learn_student, select_layers

    folder = options.out.expanduser()
    training, room = training_of(options, folder)
    criterion = cast("LayerBy", options.by or "restored")  # the options refuse the others
    with (
        STORE.hold(folder, resume=True, force=options.force),
        progress_callback(options.progress, training_bar) as watch,
        room,
        silent_transformers(),
    ):
        student, training = options.student, replace(training, watch=watch)
        if student is None:
            student = learn_student(loaded, options.source, folder, training, force=options.force)
        else:
            STORE.begin(folder, SelectionSettings(student=str(student)), force=options.force)
        keep = None if options.keep is None else int(options.keep)
        chosen = SelectionOptions(keep=keep, budget=options.budget, sequence=options.sequence, by=criterion, rows=options.rows)
        return select_layers(loaded, student, folder, training, chosen)


def _select_heads(options: SelectOptions, loaded: Spec) -> HeadSelection:
    from composer.selection.judged_rows import read_needles
    from composer.selection.key_heads import STORE, HeadOptions, select_heads
    from composer.training.teacher import open_language_model

    tasks = read_needles(options.tasks or (TASKS,))
    folder, teacher = options.out.expanduser(), open_language_model(options.source)
    training, room = training_of(options, folder)
    chosen = HeadOptions(
        keep=None if options.keep is None else int(options.keep),
        budget=options.budget,
        sequence=options.sequence,
        by=options.by or "gates",
        rows=options.rows,
        steps=options.steps or STEPS,
        tasks=tasks,
        score=options.score or "answers",
        student=options.student,
        least=options.least_per_layer or 0,
    )
    with (
        STORE.hold(folder, resume=True, force=options.force),
        progress_callback(options.progress, training_bar) as watch,
        room,
        silent_transformers(),
    ):
        subject = subject_of(loaded, options.source)
        return select_heads(subject, teacher, folder, replace(training, watch=watch), chosen, force=options.force)


def training_of(options: SelectOptions, folder: Path) -> tuple[TrainingOptions, AbstractContextManager[None]]:
    """Return the options of what is trained, and the context that explains a lack of memory."""
    from composer.training.options import TrainingOptions

    shared = ("data", "held_out", "share", "seed", "device", "backend", "tell", "parts")
    names = options_of(TrainingOptions)
    training = TrainingOptions(
        **{name: getattr(options, name) for name in shared if name in names},
        teacher=options.source,
        warn=warn_user if options.tell is inform else options.tell,
        again="run the same command without --force" if options.force else "run the same command again",
    )
    fewer = (
        f"On a machine with more memory, the same command continues from {short_path(folder)}. Shorter rows (recipe.sequence) need "
        "less memory, and need --force to start again."
    )
    return training, room_for(f"on {options.device}", fewer, SelectionError)


select = function_of(SelectOptions, run_select)


def check_possible(spec: Spec, resolved: Resolved, options: SelectOptions) -> int | None:
    """Return how many layers or key heads are kept; None where a budget decides.

    Raises SelectionError if there are not so many to choose among, or if not one of them fits into the budget.
    """
    heads = candidate_heads(resolved) if options.heads else ()
    count = len(heads) if options.heads else len(candidates(resolved))
    described = plural(count, "key head" if options.heads else "layer")
    if count < 2:
        raise SelectionError(f"{spec.name} has other heads than the source in {described}: there is nothing to choose among.")
    keep = options.keep
    if isinstance(keep, float):
        keep = int(keep * count + 1e-9)
        if not keep:
            raise SelectionError(f"--keep {options.keep:.3g}: of {described} this is none; keep more, or set their number.")
    if keep is not None and keep >= count:
        raise SelectionError(
            f"--keep {keep}: {described} of {spec.name} have other heads than the source, and with all kept "
            "it is the source; keep fewer."
        )
    floor = least_heads(resolved, options.least_per_layer or 0)
    if keep is not None and (least := sum(floor.values())) > keep:
        raise SelectionError(
            f"--least-per-layer {options.least_per_layer}: {spec.name} then keeps {least} key heads, and --keep is {keep}. Set "
            f"--keep to at least {least}, or leave --least-per-layer out."
        )
    if options.budget is not None:
        _check_budget(spec, resolved, options, options.budget)
    return keep


def _check_budget(spec: Spec, resolved: Resolved, options: SelectOptions, budget: int) -> None:
    layers, sequence = resolved.dimensions.layers, options.sequence
    if options.heads:
        subject, first_of_layers = subject_of(spec, options.source), {head[0]: head for head in reversed(candidate_heads(resolved))}
        cheapest_head = min(first_of_layers.values(), key=lambda head: subject.bytes((head,), sequence))
        count_within(lambda count: subject.bytes((cheapest_head,)[:count], sequence), 1, budget, "key head")
        floor, heads = least_heads(resolved, options.least_per_layer or 0), candidate_heads(resolved)
        least = rank_heads(heads, [0.0] * len(heads), floor)[: sum(floor.values())]
        if (size := subject.bytes(least, sequence)) > budget:
            raise SelectionError(
                f"--budget {budget:,}: the state needs {size:,} bytes with --least-per-layer {options.least_per_layer}. Set a "
                "budget of at least that, fewer tokens with --seq, or leave --least-per-layer out."
            )
        return
    cheapest = min(candidates(resolved), key=lambda layer: state_bytes(spec, (layer,), layers, options.source, sequence))
    count_within(lambda count: state_bytes(spec, (cheapest,)[:count], layers, options.source, sequence), 1, budget, "layer")


def check_student(folder: Path, resolved: Resolved, source: Reference) -> None:
    """Raise SelectionError if a folder has no student of this spec on this source, wherever the source was at that time."""
    record = read_record(folder) if folder.is_dir() else None
    if record is None:
        problem = "it is not a built model"
    elif record.resolved.hash != resolved.hash:
        problem = f"it is of {record.resolved.name}, with another hash"
    else:
        problem = another_source(folder, record, open_model(source))
    if problem is not None:
        raise SelectionError(
            f"--student {folder}: no student of {resolved.name} on this source, {problem}. Leave it out to train one."
        )


@command(SelectOptions, "quiet", "as_json")
def select_command(options: SelectOptions, screen: Screen) -> None:
    with training_steps(quiet=screen.quiet, visible=not screen.as_json) as watch:
        report = run_select(replace(options, progress=watch or False))
    print_result(report, as_json=screen.as_json)
    if screen.as_json:
        return
    labels = (
        report.keep if isinstance(report, Selection) else [f"{some.layer}.{head}" for some in report.keep for head in some.heads]
    )
    heading(f"Kept: {', '.join(map(str, labels))}")
