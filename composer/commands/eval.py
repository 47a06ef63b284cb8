"""``evaluate``: models are scored on tasks at several lengths."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

from composer.errors import EvaluationError, translate_errors
from composer.evaluation.arguments import read_lengths, read_tasks
from composer.evaluation.options import SHORTEST, EvaluationOptions, EvaluationProgress, ScoringOptions
from composer.options.classes import argument, convert_options, function_of, option, options_class
from composer.options.command import Screen, command
from composer.options.shared import PROGRESS, PartsOption, to_models, to_numbers
from composer.reporting.progress import BarUpdate, progress_callback, silent_transformers
from composer.reporting.terminal import at_once, print_result, say, watch_progress
from composer.spec.inherit import short_path
from composer.weights.opened import open_models

if TYPE_CHECKING:
    from composer.evaluation.arguments import Perplexity
    from composer.evaluation.options import EvaluationProgress
    from composer.evaluation.report import EvaluationReport
    from composer.tasks.base import Task


@options_class
class EvaluateOptions(ScoringOptions, PartsOption):
    """Score models on tasks at several lengths.

    Every sample is logged as it is scored: the same call again, with the same OUT, continues an evaluation that was interrupted.
    Scores are shares from 0 to 1, or nats for each token. If a cell fails, the report has the reason.
    """

    example: ClassVar[str] = 'composer.evaluate(["teacher", "lawcat-mine"], "mqar,pairs=4", 128)'
    models: tuple[str, ...] | dict[str, str] = argument(
        "Built or distilled folders, or what a model can be built from: folders of sources and models of the Hub (OWNER/NAME, "
        "OWNER/NAME@REVISION). In Python, a mapping sets their labels.",
        converter=to_models,
        metavar="MODEL",
    )
    tasks: str | Task | Perplexity | Sequence[str | Task | Perplexity] = option(
        "Tasks, each followed by its options: passkey,depth=0.5,recall,perplexity are three. Required unless --lm-eval names "
        "tasks. May be repeated.",
        default=(),
        is_checked=False,
        kw_only=False,
        metavar="TASK,…",
        kind=list[str],
    )
    lengths: tuple[int, ...] = option(
        "Tokens of a sample, its answer included: 512,4k, where 4k is 4,096. Required with --tasks.",
        default=(),
        converter=to_numbers(SHORTEST),
        kw_only=False,
        metavar="N,…",
    )
    progress: bool | Callable[[EvaluationProgress], None] = option(PROGRESS, default=False, is_checked=False, is_hidden=True)


@translate_errors
def run_evaluate(options: EvaluateOptions) -> EvaluationReport:
    tasks = options.tasks
    task_names = list(tasks) if isinstance(tasks, Sequence) and not isinstance(tasks, str) else [tasks]
    with progress_callback(options.progress, bar_of, "text", "bar", "count", "left") as watch:
        scoring = convert_options(options, EvaluationOptions, watch=watch)
        if read_tasks(task_names, scoring):  # report mistakes before imports that need seconds
            read_lengths(options.lengths)
        open_models(options.models, EvaluationError, options.dtype)
        with silent_transformers("error"):
            from composer.evaluation.runner import evaluate as run

            return run(options.models, task_names, options.lengths, scoring)


evaluate = function_of(EvaluateOptions, run_evaluate)


def bar_of(progress: EvaluationProgress) -> BarUpdate:
    """Return the progress of an evaluation, as a bar shows it."""
    return BarUpdate("samples", progress.done, progress.total, cell_of(progress))


def cell_of(progress: EvaluationProgress) -> str:
    """Return which model, task and length."""
    cell = f"{progress.model}  {progress.task}  {progress.length:,}"
    return f"making samples  {cell}" if progress.making else cell


@command(EvaluateOptions, "quiet", "as_json")
def eval_command(options: EvaluateOptions, screen: Screen) -> None:
    at_once("Reading the models and their tasks", quiet=screen.hides_progress)
    with watching(quiet=screen.hides_progress) as watch:
        report = run_evaluate(replace(options, progress=watch or False))
    below = "" if options.out is None else f"\nResults, tables and plots: {short_path(options.out)}"
    print_result(report, as_json=screen.as_json, below=below)


def watching(*, quiet: bool) -> AbstractContextManager[Callable[[EvaluationProgress], None] | None]:
    """Report the progress of an evaluation: a bar on a terminal; otherwise a line while samples are made, and one at the start of
    each cell."""
    begun: list[tuple[str, str, int]] = []
    making: list[str] = []

    def line(progress: EvaluationProgress) -> None:
        if progress.making:
            if not making:
                making.append("Making the samples …")
                say(making[0], err=True)
            return
        cell = (progress.model, progress.task, progress.length)
        if cell not in begun:
            begun.append(cell)
            say(f"{cell_of(progress)}  {progress.done:,}/{progress.total:,} samples, {progress.seconds:.0f} s", err=True)

    return watch_progress("text", "bar", "count", "left", bar=bar_of, line=line, quiet=quiet)
