"""``python -m evidence.smollm2``: do the missing runs of a plan. It may be stopped at any time, and continues later."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Annotated

import typer

from composer.errors import ComposerError
from evidence.smollm2 import page
from evidence.smollm2.plan import PLAN, Inputs, read_plan
from evidence.smollm2.result import RUNS
from evidence.smollm2.run import Run, is_kept, run_model, runs_of


def main(
    teacher: Annotated[str | None, typer.Option(help="The source of all students: a folder, or a model of the Hub.")] = None,
    data: Annotated[list[str] | None, typer.Option(help="Texts to train on. May be repeated.")] = None,
    text: Annotated[Path | None, typer.Option(help="Text to measure perplexity on.")] = None,
    haystack: Annotated[Path | None, typer.Option(help="Text that needles are hidden in.")] = None,
    tasks: Annotated[Path | None, typer.Option(help="Folder with local copies of lm-eval's tasks.")] = None,
    rows: Annotated[Path | None, typer.Option(help="Folder that the paths in these copies start from.")] = None,
    bfloat16: Annotated[bool, typer.Option("--bfloat16", help="Train with projections in bfloat16.")] = False,
    accumulate: Annotated[int | None, typer.Option(help="Parts that a batch is computed in, for less memory.", min=1)] = None,
    device: Annotated[str, typer.Option(help="Where to run: cpu or cuda.")] = "cpu",
    dtype: Annotated[str, typer.Option(help="Type of the weights in evaluations.")] = "float32",
    plan: Annotated[Path, typer.Option(help="The plan.")] = PLAN,
    only: Annotated[list[str] | None, typer.Option(help="Names of the plan's models, or NAME-SEED. Left out: all.")] = None,
    jobs: Annotated[int, typer.Option(help="Runs at a time.", min=1)] = 1,
    work: Annotated[Path, typer.Option(help="Folder for models and scores.")] = Path("build-output/smollm2"),
    runs_folder: Annotated[Path, typer.Option("--kept", help="Folder for the results: a folder in it for each plan.")] = RUNS,
    page_only: Annotated[bool, typer.Option("--page", help="Run nothing. Write docs/smollm2.md of the kept results.")] = False,
) -> None:
    """Build, train and score the models of a plan."""
    if page_only:
        page.write(runs_folder)
        return
    if teacher is None or not data:
        raise typer.BadParameter("runs need --teacher and --data")
    inputs = Inputs(
        teacher=teacher,
        data=tuple(data),
        text=text,
        haystack=haystack,
        bfloat16=bfloat16,
        accumulate=accumulate,
        device=device,
        dtype=dtype,
        tasks=tasks,
        rows=rows,
    )
    try:
        runs = list(runs_of(read_plan(plan), inputs, work.resolve()))
        if only:
            names = {name for run in runs for name in (run.name, run.folder.name)}
            if unknown := set(only) - names:
                raise ValueError(f"{plan} has no {', '.join(sorted(unknown))}; it has {', '.join(sorted(names))}")
            runs = [run for run in runs if {run.name, run.folder.name} & set(only)]
        kept = runs_folder / plan.stem
        run_all([run for run in runs if not is_kept(run, kept)], jobs, kept)
    except (ComposerError, OSError, ValueError) as error:
        typer.echo(error, err=True)
        raise typer.Exit(2) from error


def run_all(runs: Sequence[Run], jobs: int, runs_folder: Path) -> None:
    """Do runs, ``jobs`` at a time. A run whose source is a student waits for that student's run.

    If runs fail, raises ComposerError after all others have ended.
    """
    started: dict[str, Future[None]] = {}

    def start(run: Run, source: Future[None] | None) -> None:
        if source is not None:
            source.result()
        run_model(run, _print_message, runs_folder)

    with ThreadPoolExecutor(jobs) as pool:
        for run in runs:
            source = None if run.student is None else started.get(f"{run.student.source}-{run.seed}")
            started[run.folder.name] = pool.submit(start, run, source)
    failures = {name: error for name, future in started.items() if (error := future.exception()) is not None}
    if failures:
        raise ComposerError("\n".join(f"{name}: {error}" for name, error in failures.items()))


def _print_message(line: str) -> None:
    typer.echo(line, err=True)


if __name__ == "__main__":
    sys.exit(typer.run(main))
