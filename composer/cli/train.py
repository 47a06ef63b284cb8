"""``compose train``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import composer
from composer.cli.bars import at_once, training_steps
from composer.cli.distill import print_run
from composer.cli.options import (
    Anew,
    Backend,
    Bfloat16,
    Checkpointing,
    Data,
    HeldOut,
    HeldRows,
    HeldShare,
    Interval,
    Json,
    Quiet,
    Resume,
    RunsOn,
    SetRecipe,
    Strict,
)
from composer.cli.screen import one_voice
from composer.data.loading import SHARE
from composer.devices import processes_started
from composer.graph.lowering import AUTO


def train(
    model: Annotated[Path, typer.Argument(help="A folder that `compose build --fresh` has written.")],
    data: Data,
    held_out: HeldOut = None,
    share: HeldShare = SHARE,
    held_rows: HeldRows = None,
    out: Annotated[
        Path | None,
        typer.Option("-o", "--out", metavar="FOLDER", help="Where the result goes; if this is left out, MODEL-trained."),
    ] = None,
    settings: SetRecipe = None,
    seed: Annotated[int, typer.Option(help="Seed of the order of the data.")] = 0,
    device: RunsOn = "cpu",
    backend: Backend = AUTO,
    bfloat16: Bfloat16 = False,
    checkpointing: Checkpointing = False,
    interval: Interval = 60.0,
    resume: Resume = False,
    force: Anew = False,
    strict: Strict = False,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Train a model that was built from nothing.

    Every parameter learns to predict the next token, as its recipe says. While it runs, checkpoints, a log and TensorBoard's files
    are in OUT.run, from where --resume continues to the same numbers.

    Several processes shard the model, and share each step's rows: torchrun --nproc-per-node 2 -m composer train …
    """
    if processes_started() == 1:
        at_once(f"Training {model}", quiet=quiet or as_json)
    with one_voice(as_json=as_json) as speaks, training_steps(quiet=quiet, visible=speaks and not as_json) as watch:
        report = composer.train(
            model,
            data,
            out,
            held_out=held_out or (),
            share=share,
            held_out_rows=held_rows,
            overrides=settings or (),
            seed=seed,
            device=device,
            backend=backend,
            bfloat16=bfloat16,
            gradient_checkpointing=checkpointing,
            checkpoint_seconds=interval,
            resume=resume,
            force=force,
            strict=strict,
            progress=watch or False,
        )
    if speaks:
        print_run(report, "Trained", as_json=as_json)
