"""``fit``: the composition of kept key heads and other heads that is closest to the source within a budget of state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from composer.commands.select import STEPS, TASKS, JudgingOptions, training_of
from composer.data.loading import check_references
from composer.errors import SelectionError, translate_errors
from composer.options.arguments import ByteCount, read_bytes
from composer.options.classes import argument, convert_options, function_of, option, options_class
from composer.options.command import Screen, command
from composer.options.shared import (
    OUT,
    SOURCE,
    PartsOption,
    reads,
    to_optional_path,
    to_optional_tokens,
    to_path,
    to_text,
    to_texts,
)
from composer.reporting.progress import progress_callback, silent_transformers
from composer.reporting.terminal import print_result
from composer.reporting.words import size
from composer.selection.choice import HeadSubject, candidate_heads, subject_of
from composer.spec.loading import SpecLike, specs_of, variants_of
from composer.training.screen import training_bar, training_steps
from composer.weights.sources import describe_model

if TYPE_CHECKING:
    from composer.selection.fit_report import Fit

SPECS = ("ablations/streaming-windows", "lolcats", "lola", "gated-delta")
"""The heads beside kept key heads: windows with sinks, states, and a sparse cache."""
TRAINED_STEPS = 40


@reads(str)
def to_bytes(value: ByteCount) -> int:
    return read_bytes(value)


@options_class
class OfFittedSource(PartsOption):
    source: str = argument(SOURCE, converter=to_text)


@options_class
class FitOptions(JudgingOptions, OfFittedSource):
    """Find the heads closest to the source within a state budget.

    Gates order the key heads once (OUT/gates), as `compose select --heads` does. For each spec of heads, as many key heads keep the
    source's attention as fit into the budget. Heads with fresh parameters learn the source's attention in a short run. Then each
    student is compared with the source on held-out rows. OUT/spec.yaml is the spec of the best; build and distill it as any other.
    The same call again continues an interrupted fit.
    """

    example: ClassVar[str] = 'composer.fit("teacher", "texts.jsonl", "fitted", budget="3MiB")'
    out: Path = option("Folder for the spec, the table, the gates and the students.", converter=to_path, kw_only=False, **OUT)
    budget: int = option("The most bytes of state at --seq tokens, such as 6MiB.", converter=to_bytes, metavar="BYTES")
    specs: SpecLike | Sequence[SpecLike] = option(
        f"Heads to try beside kept key heads: specs, and sweeps with all of their variants. Left out: {', '.join(SPECS)}. May be "
        "repeated.",
        default=(),
        is_checked=False,
        flags=("--spec",),
        metavar="SPEC",
        kind=list[str],
    )
    gates: Path | None = option(
        "OUT of an earlier `compose select … --heads` or fit, whose gates are used. No gates are learned then.",
        default=None,
        converter=to_optional_path,
        metavar="FOLDER",
    )
    tasks: tuple[str, ...] = option(
        f"Tasks whose answers are scored, and that gates learn, each followed by its options. Left out: {TASKS}. May be repeated.",
        default=(),
        converter=to_texts,
        metavar="TASK,…",
    )
    steps: int = option("Steps of one row in which fresh parameters learn.", default=TRAINED_STEPS, least=1, metavar="N")
    row_tokens: int | None = option(
        "Tokens of a row. Left out, 1,024, or as many as the source was made for if that is less.",
        default=None,
        converter=to_optional_tokens(2),
        metavar="TOKENS",
    )


@translate_errors
def run_fit(options: FitOptions) -> Fit:
    subjects = _subjects(options.specs, options.source)
    _check_budget(subjects, options)
    if options.row_tokens and options.row_tokens > (most := describe_model(options.source).trunk.max_positions):
        raise SelectionError(f"--row-tokens {options.row_tokens:,}: the source supports at most {most:,} tokens. Set at most that.")
    check_references((*options.data, *options.held_out))
    from composer.selection.fit_runner import STORE, FittingOptions, fit_budget
    from composer.selection.needles import read_needles
    from composer.training.teacher import open_language_model

    tasks, teacher, folder = read_needles(options.tasks or (TASKS,)), open_language_model(options.source), options.out.expanduser()
    training, room = training_of(options, options.source, folder)
    gates = None if options.gates is None else options.gates.expanduser()
    chosen = convert_options(options, FittingOptions, tasks=tasks, gates=gates, gate_steps=STEPS)
    with (
        STORE.hold(folder, resume=True, force=options.force),
        progress_callback(options.progress, training_bar) as watch,
        room,
        silent_transformers(),
    ):
        return fit_budget(subjects, teacher, folder, replace(training, watch=watch), chosen, force=options.force)


fit = function_of(FitOptions, run_fit)


def _subjects(specs: SpecLike | Sequence[SpecLike], source: str) -> dict[str, HeadSubject]:
    """Return each spec and each variant of a sweep on the source, by name. Raises SpecError, SourceError and SelectionError."""
    subjects: dict[str, HeadSubject] = {}
    for named in specs_of(specs) or SPECS:
        for spec in variants_of(named)[1].values():
            if spec.name in subjects:
                raise SelectionError(f"--spec {spec.name}: it is named twice. Name it once, or change the `name` of one.")
            subjects[spec.name] = subject_of(spec, source)
    return subjects


def _check_budget(subjects: Mapping[str, HeadSubject], options: FitOptions) -> None:
    """Raise SelectionError if no student fits into the budget, or if the source itself does."""
    sizes = {name: subject.bytes((), options.sequence) for name, subject in subjects.items()}
    name = min(sizes, key=lambda name: sizes[name])
    at = f"at {options.sequence:,} tokens"
    if sizes[name] > options.budget:
        raise SelectionError(
            f"--budget {options.budget:,}: the smallest student, {name} with no key head kept, has a state of {sizes[name]:,} "
            f"bytes {at}. Set at least that, fewer tokens with --seq, or other heads with --spec."
        )
    subject = subjects[name]
    if (whole := subject.bytes(candidate_heads(subject.resolved), options.sequence)) <= options.budget:
        raise SelectionError(
            f"--budget {options.budget:,}: the source's own cache, {size(whole)} {at}, fits. Set a smaller budget, or more tokens "
            "with --seq."
        )


@command(FitOptions, "quiet", "as_json")
def fit_command(options: FitOptions, screen: Screen) -> None:
    with training_steps(quiet=screen.quiet, visible=not screen.as_json) as watch:
        report = run_fit(replace(options, progress=watch or False))
    print_result(report, as_json=screen.as_json)
