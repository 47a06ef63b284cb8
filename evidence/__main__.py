"""``make evidence``: do the missing runs, then write the pages. It may be stopped at any time, and continues later."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from composer.ablation.runner import one_process, processes
from composer.errors import ComposerError
from composer.reporting.progress import silent_transformers
from composer.system.devices import check_device
from evidence import choosing_page, collapse, listops, page, selecting, speed
from evidence.ablations import ABLATIONS
from evidence.experiments import OUT
from evidence.running import run_missing

NAMES = (*ABLATIONS, collapse.NAME, listops.NAME, selecting.NAME, speed.NAME)


def main(
    only: Annotated[list[str] | None, typer.Option(help=f"Experiments: {', '.join(NAMES)}. Left out: all.")] = None,
    work: Annotated[Path, typer.Option(help="Folder of the models and steps.")] = Path(OUT),
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    jobs: Annotated[int | None, typer.Option(min=1, help="Steps at a time; left out, one a core, or one on a GPU.")] = None,
    page_only: Annotated[bool, typer.Option("--page", help="Run nothing; write the pages of what is kept.")] = False,
) -> None:
    """Do every run that is not kept in evidence/runs, then write docs/evidence.md and docs/choosing.md."""
    unknown = [name for name in only or () if name not in NAMES]
    if unknown:
        raise typer.BadParameter(f'no experiment is called "{unknown[0]}"; there are {", ".join(NAMES)}', param_hint="--only")
    failures: list[str] = []
    try:
        check_device(device)
        count = jobs or ((os.cpu_count() or 1) if device == "cpu" else 1)
        workers = one_process if count == 1 else processes(count)
        for experiment in () if page_only else ABLATIONS.values():
            if not only or experiment.name in only:
                failures += run_missing(experiment, work, workers, _print_message, device)
        if not page_only and (not only or collapse.NAME in only):
            collapse.run_missing(work, workers, _print_message, device)
        if not page_only and (not only or listops.NAME in only):
            listops.run_missing(work, _print_message, device)
        if not page_only and (not only or selecting.NAME in only):
            failures += selecting.run_all(work, workers, _print_message, device)
        if not page_only and (not only or speed.NAME in only):
            speed.run_missing(work, _print_message, device)
    except ComposerError as error:
        typer.echo(error, err=True)
        raise typer.Exit(2) from error
    page.write()
    choosing_page.write()
    for failure in failures:
        typer.echo(failure, err=True)
    raise typer.Exit(1 if failures else 0)


def _print_message(line: str) -> None:
    typer.echo(line, err=True)


if __name__ == "__main__":
    os.chdir(Path(__file__).parents[1])
    with silent_transformers():
        sys.exit(typer.run(main))
