"""``compose logits``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

import composer
from composer.cli.bars import at_once
from composer.cli.options import SOURCE, Data, HeldOut, HeldShare, Json, Quiet, RunsOn
from composer.cli.screen import print_json, print_view
from composer.commands.logits import BATCH, TOP_K
from composer.data.loading import SHARE


def logits(
    teacher: Annotated[str, typer.Argument(metavar="SOURCE", help=SOURCE)],
    data: Data,
    out: Annotated[Path, typer.Option("-o", "--out", metavar="FOLDER", help="Folder for the logits; the same call continues.")],
    top_k: Annotated[int, typer.Option(metavar="K", help="Logits of each token: the K largest.")] = TOP_K,
    temperature: Annotated[float, typer.Option(help="The recipe's finetune.temperature.")] = 1.0,
    sequence: Annotated[
        str | None, typer.Option(metavar="N", help="Tokens of a row, as the recipe's sequence; 1k is 1,024.")
    ] = None,
    rows: Annotated[
        Literal["packed", "joined", "whole", "padded"], typer.Option(help="How texts are packed, as the recipe's rows.")
    ] = "packed",
    held_out: HeldOut = None,
    share: HeldShare = SHARE,
    seed: Annotated[int, typer.Option(help="Seed of what is held out, as for compose distill.")] = 0,
    batch: Annotated[int, typer.Option(help="Rows at a time.")] = BATCH,
    device: RunsOn = "cpu",
    force: Annotated[bool, typer.Option("--force", help="Replace the logits in OUT.")] = False,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Write a teacher's logits, for students to learn from.

    compose distill STUDENT --stage finetune --teacher-logits OUT then needs no teacher in memory. Data, rows, share and seed have
    to be those of the student's run.
    """
    at_once(f"Reading {teacher}", quiet=quiet or as_json)
    written = composer.logits(
        teacher,
        data,
        out,
        top_k=top_k,
        temperature=temperature,
        sequence=sequence,
        rows=rows,
        held_out=held_out or (),
        share=share,
        seed=seed,
        batch=batch,
        device=device,
        force=force,
        progress=not (quiet or as_json),
    )
    if as_json:
        print_json(written.model_dump(mode="json"))
    else:
        print_view(written.view(), wrap=False)
