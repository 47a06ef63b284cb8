"""``compose sample``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import composer
from composer.cli.bars import at_once
from composer.cli.options import SOURCE, Json, Quiet, RunsOn, TopP
from composer.cli.screen import heading, print_json
from composer.spec.inherit import shown


def sample(
    model: Annotated[str, typer.Argument(metavar="SOURCE", help=SOURCE)],
    out: Annotated[Path, typer.Option("-o", "--out", metavar="FILE", help="File for the texts, as JSON lines.")],
    texts: Annotated[int, typer.Option(help="Number of texts.")] = 1000,
    length: Annotated[str, typer.Option(metavar="N", help="Tokens of a text at most, BOS included; 1k is 1,024.")] = "512",
    temperature: Annotated[float, typer.Option(help="1 is the model's own distribution.")] = 1.0,
    top_p: TopP = 1.0,
    batch: Annotated[int, typer.Option(help="Texts of a batch; another number gives other texts.")] = 32,
    seed: Annotated[int, typer.Option(help="Seed of the sampling.")] = 0,
    device: RunsOn = "cpu",
    force: Annotated[bool, typer.Option("--force", help="Replace a file that is there.")] = False,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Let a model write texts to train its student on.

    For a teacher whose own training data are not at hand: compose distill STUDENT --data FILE.
    """
    at_once(f"Reading {model}", quiet=quiet or as_json)
    made = composer.sample(
        model,
        out,
        texts=texts,
        length=length,
        temperature=temperature,
        top_p=top_p,
        batch=batch,
        seed=seed,
        device=device,
        force=force,
        progress=not (quiet or as_json),
    )
    if as_json:
        print_json(made.model_dump(mode="json"))
    else:
        heading(f"Wrote {shown(made.out)}")
