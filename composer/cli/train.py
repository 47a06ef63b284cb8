"""``compose train``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from composer.cli.distill import Data, HeldOut, print_run
from composer.cli.options import Json, Set
from composer.cli.screen import print_json, steps, without_bars
from composer.data.loading import SHARE


def train(
    model: Annotated[Path, typer.Argument(help="A folder that `compose build --fresh` has written.")],
    data: Data,
    held_out: HeldOut = None,
    share: Annotated[float, typer.Option(help="Of the data, held out where --held-out names none; 0: nothing.")] = SHARE,
    out: Annotated[
        Path | None,
        typer.Option("-o", "--out", metavar="FOLDER", help="Where the result goes; if this is left out, MODEL-trained."),
    ] = None,
    settings: Set = None,
    seed: Annotated[int, typer.Option(min=0, help="Of the order of the data.")] = 0,
    device: Annotated[str, typer.Option(help="Where it runs: cpu or cuda.")] = "cpu",
    bfloat16: Annotated[bool, typer.Option("--bfloat16", help="Let projections compute in bfloat16.")] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with a run that was stopped.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace the result and the run that stand there.")] = False,
    as_json: Json = False,
) -> None:
    """Train a model that was built from nothing.

    Every parameter learns the next token, as its recipe says. While it runs, checkpoints, a log and TensorBoard's files stand in
    OUT.run; --resume goes on from there to the same numbers.
    """
    from composer.training.run import Options
    from composer.training.scratch import train as run

    without_bars()
    target = out if out is not None else Path(f"{model.resolve().name}-trained")
    with steps(quiet=as_json) as watch:
        options = Options(
            data=data,
            held_out=held_out or (),
            share=share,
            seed=seed,
            device=device,
            autocast=bfloat16,
            resume=resume,
            force=force,
            watch=watch,
        )
        report = run(model, target, options, overrides=settings or ())
    if as_json:
        print_json(report.model_dump(mode="json"))
        return
    print_run(report, "Trained")
