"""``compose inspect``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import composer
from composer.cli.options import Backend, Json, Quiet, RunsOn
from composer.cli.screen import print_json, print_view, say
from composer.errors import InspectionError
from composer.files import MOST_TEXT, read_text_file
from composer.graph.lowering import AUTO
from composer.inspection.options import LENGTH, QUERIES, TASK
from composer.spec.inherit import shown


def inspect(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL", help="A built or distilled folder, or a source, which is looked at with softmax attention."
        ),
    ],
    text: Annotated[Path | None, typer.Option(metavar="FILE", help="A text of your own to look at the model on.")] = None,
    tasks: Annotated[
        str | None, typer.Option(metavar="TASK", help=f"A task that writes the text, options behind it; left out, {TASK}.")
    ] = None,
    length: Annotated[str, typer.Option(metavar="N", help="Tokens of the text at most; 1k is 1,024.")] = str(LENGTH),
    layers: Annotated[str | None, typer.Option(metavar="N,…", help="Layers to look at, from 0, or -1 for the last; all.")] = None,
    queries: Annotated[int, typer.Option(help="Tokens that are asked what they attend to, evenly spread.")] = QUERIES,
    teacher: Annotated[
        str | None, typer.Option(metavar="SOURCE", help="What to compare with; left out, the source of the student.")
    ] = None,
    alone: Annotated[bool, typer.Option("--alone", help="Compare with nothing.")] = False,
    seed: Annotated[int, typer.Option(help="Seed of the task's sample.")] = 0,
    out: Annotated[Path | None, typer.Option("-o", "--out", metavar="FOLDER", help="Folder for the report.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the report in OUT.")] = False,
    device: RunsOn = "cpu",
    backend: Backend = AUTO,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Look inside a model: what heads attend to, what states know.

    Which memory answers, too, how fast gates forget, and how like the teacher each layer is.

    With OUT: a page (report.html), and pictures with the numbers behind them. Without it, a table is all.
    """
    found = composer.inspect(
        model,
        text=None if text is None else _read(text),
        tasks=tasks,
        length=length,
        layers=layers,
        queries=queries,
        teacher=teacher,
        alone=alone,
        seed=seed,
        device=device,
        backend=backend,
        out=out,
        force=force,
        progress=False if quiet or as_json else lambda said: say(said, err=True),
    )
    if as_json:
        from composer.inspection.findings import plain

        print_json(plain(found))
        return
    print_view(found.view(), wrap=False)
    if out is not None:
        say(f"\nThe page, pictures and numbers: {shown(out)}/report.html")


def _read(path: Path) -> str:
    return read_text_file(path, InspectionError, MOST_TEXT)
