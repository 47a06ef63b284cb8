"""``compose distill``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

import composer
from composer.cli.bars import at_once, training_steps
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
from composer.cli.screen import heading, one_voice, print_json, print_table, say
from composer.data.loading import SHARE
from composer.devices import processes_started
from composer.graph.lowering import AUTO
from composer.spec.inherit import shown

if TYPE_CHECKING:
    from composer.training.run import TrainingReport


def distill(
    model: Annotated[Path, typer.Argument(help="A folder that `compose build` has written.")],
    data: Data,
    held_out: HeldOut = None,
    share: HeldShare = SHARE,
    held_rows: HeldRows = None,
    teacher: Annotated[
        str | None, typer.Option(metavar="SOURCE", help="The model to learn from; left out, the one that MODEL was built from.")
    ] = None,
    teacher_logits: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER", help="With --stage finetune: logits that `compose logits` has written, in place of a teacher."
        ),
    ] = None,
    stage: Annotated[Literal["transfer", "finetune", "all"], typer.Option(help="Which stages of the recipe to run.")] = "all",
    out: Annotated[
        Path | None,
        typer.Option("-o", "--out", metavar="FOLDER", help="Where the result goes; if this is left out, MODEL-distilled."),
    ] = None,
    settings: SetRecipe = None,
    seed: Annotated[int, typer.Option(help="Seed of the order of the data, and of adapters.")] = 0,
    device: RunsOn = "cpu",
    backend: Backend = AUTO,
    bfloat16: Bfloat16 = False,
    checkpointing: Checkpointing = False,
    stream: Annotated[bool, typer.Option("--stream", help="With --stage transfer: one layer in memory at a time.")] = False,
    merge: Annotated[bool, typer.Option("--merge", help="Fold adapters into the weights at the end.")] = False,
    interval: Interval = 60.0,
    resume: Resume = False,
    force: Anew = False,
    strict: Strict = False,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Train a built model to be like its teacher.

    Its recipe says how: first the heads learn the teacher's attention, then the model learns the text. While it runs, checkpoints,
    a log and TensorBoard's files are in OUT.run, from where --resume continues to the same numbers. The result appears whole or
    not at all.

    Several processes shard the models, and share each step's rows: torchrun --nproc-per-node 2 -m composer distill …
    """
    if processes_started() == 1:
        at_once(f"Distilling {model}", quiet=quiet or as_json)
    with one_voice(as_json=as_json) as speaks, training_steps(quiet=quiet, visible=speaks and not as_json) as watch:
        report = composer.distil(
            model,
            data,
            out,
            held_out=held_out or (),
            share=share,
            held_out_rows=held_rows,
            teacher=teacher,
            teacher_logits=teacher_logits,
            stage=stage,
            overrides=settings or (),
            seed=seed,
            device=device,
            backend=backend,
            bfloat16=bfloat16,
            gradient_checkpointing=checkpointing,
            stream=stream,
            merge=merge,
            checkpoint_seconds=interval,
            resume=resume,
            force=force,
            strict=strict,
            progress=watch or False,
        )
    if speaks:
        print_run(report, "Distilled", as_json=as_json)


def print_run(report: TrainingReport, did: str, *, as_json: bool) -> None:
    """Losses before and after, and where the log is."""
    from composer.training.table import losses, remarks

    if as_json:
        print_json(report.model_dump(mode="json"))
        return
    heading(f"{did} {shown(report.out)}")
    table = losses(report)
    if table.rows:
        print_table(table.rows, headers=table.headers, right=table.figures)
    for remark in remarks(report):
        say(f"  {remark}")
