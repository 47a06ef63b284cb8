"""``compose select``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import composer
from composer.cli.bars import training_steps
from composer.cli.options import SOURCE, Backend, Data, HeldOut, HeldShare, Json, Quiet, RunsOn, Set
from composer.cli.screen import heading, print_json, print_table, say
from composer.commands.selection import ROWS, SEQUENCE
from composer.data.loading import SHARE
from composer.graph.lowering import AUTO
from composer.selection.report import By, remarks, table


def select(
    spec: Annotated[str, typer.Argument(help="The spec whose heads go into the layers that are not kept.")],
    source: Annotated[str, typer.Option("--from", metavar="SOURCE", help=SOURCE)],
    data: Data,
    out: Annotated[Path, typer.Option("-o", "--out", metavar="FOLDER", help="Where the spec, the scores and the student go.")],
    keep: Annotated[int | None, typer.Option(metavar="N", help="Layers that keep the source's attention.")] = None,
    budget: Annotated[
        int | None, typer.Option(metavar="BYTES", help="In place of --keep: as many as fit into so many bytes of state.")
    ] = None,
    sequence: Annotated[
        str, typer.Option("--seq", "--sequence", metavar="TOKENS", help="Tokens at which the state is counted; 4k is 4,096.")
    ] = str(SEQUENCE),
    by: Annotated[
        By,
        typer.Option(
            help="The score: what restoring the layer wins, what replacing it alone loses (both KL to the source), or the error of "
            "its attention."
        ),
    ] = "restored",
    rows: Annotated[int, typer.Option(metavar="N", help="Held-out rows to score on.")] = ROWS,
    held_out: HeldOut = None,
    share: HeldShare = SHARE,
    settings: Set = None,
    seed: Annotated[int, typer.Option(help="Seed of the fresh parameters and of the order of the data.")] = 0,
    device: RunsOn = "cpu",
    backend: Backend = AUTO,
    student: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="A student of SPEC that has learned already, such as OUT/student: nothing is trained."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the selection in OUT.")] = False,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Find the layers that should keep their own attention.

    A student with the spec's heads in every layer learns the source's attention first (OUT/student), as the spec's recipe says.
    Then each layer is scored. OUT/spec.yaml is the spec that keeps the best; build and distill it as any other.
    """
    with training_steps(quiet=quiet, visible=not as_json) as watch:
        found = composer.select(
            spec,
            source,
            data,
            out,
            keep=keep,
            budget=budget,
            sequence=sequence,
            by=by,
            rows=rows,
            held_out=held_out or (),
            share=share,
            overrides=settings or (),
            seed=seed,
            device=device,
            backend=backend,
            student=student,
            force=force,
            progress=watch or False,
        )
    if as_json:
        print_json(found.model_dump(mode="json"))
        return
    scores = table(found)
    print_table(scores.rows, headers=scores.headers, right=scores.figures, wrap=False)
    for remark in remarks(found):
        say(remark)
    heading(f"Kept: {', '.join(map(str, found.keep))}")
