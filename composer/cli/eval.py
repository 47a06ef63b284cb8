"""``compose eval``."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from composer.cli.options import Backend, Json, RunsOn
from composer.cli.screen import heading, print_json, print_table, without_bars
from composer.errors import EvaluationError
from composer.evaluation.options import BATCH_TOKENS, SAMPLES, Options
from composer.graph.lowering import AUTO
from composer.spec.inherit import shown

if TYPE_CHECKING:
    from composer.evaluation.options import Progress
    from composer.evaluation.report import Report

Dtype = Literal["float32", "bfloat16", "float16", "float64"]


def evaluate(
    models: Annotated[
        list[str],
        typer.Argument(
            metavar="MODEL...",
            help="Built or distilled folders, or what one can be built from: "
            "folders of sources and models of the Hub (OWNER/NAME, OWNER/NAME@REVISION).",
        ),
    ],
    tasks: Annotated[
        list[str] | None,
        typer.Option(metavar="TASK,…", help="passkey, recall, perplexity, …, with options behind: passkey,depth=0.5,recall."),
    ] = None,
    lengths: Annotated[str | None, typer.Option(metavar="N,…", help="Tokens of a sample, its answer included.")] = None,
    samples: Annotated[
        int | None, typer.Option(min=1, help=f"Of each task at each length; left out, {SAMPLES}, and all of lm-eval's.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of the samples.")] = 0,
    out: Annotated[
        Path | None,
        typer.Option("-o", "--out", metavar="FOLDER", help="Where results and pictures go; said again, it goes on there."),
    ] = None,
    text: Annotated[Path | None, typer.Option(metavar="FILE", help="What perplexity reads.")] = None,
    haystack: Annotated[Path | None, typer.Option(metavar="FILE", help="The text that needles are hidden in.")] = None,
    babi: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="bAbI's files, for babilong; left out, facts made here.")
    ] = None,
    device: RunsOn = "cpu",
    dtype: Annotated[Dtype | None, typer.Option(help="Of all weights; left out, as they are stored.")] = None,
    backend: Backend = AUTO,
    batch_tokens: Annotated[int, typer.Option(min=1, help="Tokens of the samples that are scored together.")] = BATCH_TOKENS,
    harness: Annotated[
        str | None, typer.Option("--lm-eval", metavar="TASK,…", help="Tasks of lm-eval-harness, if it is installed.")
    ] = None,
    include_path: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="With --lm-eval: a folder with tasks of your own.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the evaluation that stands there.")] = False,
    as_json: Json = False,
) -> None:
    """Score models on tasks at several lengths.

    Every sample is written down as it is scored: an evaluation that was interrupted goes on where it stopped when it is started
    again with the same OUT. Without OUT nothing is written.
    """
    from transformers.utils import logging

    from composer.evaluation.runner import evaluate as run

    without_bars()
    logging.set_verbosity_error()  # it would warn of lengths beyond the source's, which are what is asked for here
    if include_path is not None and harness is None:
        raise EvaluationError("--include-path is for tasks of lm-eval: name them with --lm-eval.")
    with watching(quiet=as_json) as watch:
        options = Options(
            samples=samples,
            seed=seed,
            out=out,
            text=text,
            haystack=haystack,
            babi=babi,
            device=device,
            dtype=dtype,
            backend=backend,
            batch_tokens=batch_tokens,
            harness=_names(harness),
            include_path=include_path,
            force=force,
            watch=watch,
        )
        report = run(models, tasks or (), _numbers(lengths), options)
    print_report(report, out, as_json=as_json)


def print_report(report: Report, out: Path | None, *, as_json: bool) -> None:
    """The tables, and where the rest is told."""
    from composer.evaluation.table import tables

    if as_json:
        print_json(report.model_dump(mode="json"))
        return
    for place, table in enumerate(tables(report)):
        if place:
            typer.echo()
        heading(table.title)
        print_table(table.rows, headers=table.headers, right=range(1, len(table.headers)), wrap=False)
    if out is not None:
        typer.echo(f"\nResults, tables and plots: {shown(out)}")


@contextmanager
def watching(*, quiet: bool) -> Iterator[Callable[[Progress], None] | None]:
    """How an evaluation goes, on stderr: a bar on a terminal, a line as each cell begins elsewhere."""
    if quiet:
        yield None
        return
    if not sys.stderr.isatty():
        begun: list[tuple[str, str, int]] = []

        def cell(progress: Progress) -> None:
            here = (progress.model, progress.task, progress.length)
            if here not in begun:
                begun.append(here)
                typer.echo(f"{_where(progress)}  {progress.done:,}/{progress.total:,} samples, {progress.seconds:.0f} s", err=True)

        yield cell
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bars

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Bars(*columns, console=Console(stderr=True), transient=True) as bar:
        whole: dict[str, Any] = {}

        def scored(progress: Progress) -> None:
            if not whole:
                whole["bar"] = bar.add_task("", total=progress.total)
            bar.update(whole["bar"], completed=progress.done, description=_where(progress))

        yield scored


def _where(progress: Progress) -> str:
    return f"{progress.model}  {progress.task}  {progress.length:,}"


def _names(said: str | None) -> tuple[str, ...]:
    return tuple(name for part in (said or "").split(",") if (name := part.strip()))


def _numbers(said: str | None) -> list[int]:
    """Raises EvaluationError."""
    numbers = []
    for word in _names(said):
        if not word.isascii() or not word.isdigit():
            raise EvaluationError(f"--lengths: {word!r} is no number of tokens; expected such as 512,1024.")
        numbers.append(int(word))
    return numbers
