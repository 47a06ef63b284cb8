"""``compose ablate``."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import composer
from composer.cli import bars
from composer.cli.bars import at_once
from composer.cli.options import SOURCE, Babi, Bfloat16, HaystackOption, HeldOut, HeldShare, Json, Quiet, RunsOn, Set, TextOption
from composer.cli.screen import heading, print_json, print_table, say
from composer.commands.ablation import bar_of, outcome_in_words
from composer.data.loading import SHARE
from composer.spec.inherit import shown

if TYPE_CHECKING:
    from composer.ablation.figures import Figures
    from composer.ablation.plan import AblationStep
    from composer.ablation.report import AblationReport
    from composer.ablation.runner import OnStep

FAILED = 1
"""Exit code where a variant failed and the others were reported."""


def ablate(
    specs: Annotated[list[str], typer.Argument(metavar="SPEC...", help="Sweeps, for all of their variants; single specs, too.")],
    out: Annotated[Path, typer.Option("-o", "--out", metavar="FOLDER", help="Folder of the ablation; calling again continues it.")],
    source: Annotated[str | None, typer.Option("--from", metavar="SOURCE", help=SOURCE)] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Build each from nothing, on a trunk of its own.")] = False,
    tokenizer: Annotated[str | None, typer.Option(metavar="MODEL", help="With --fresh: a model whose tokenizer to take.")] = None,
    data: Annotated[
        list[str] | None, typer.Option(metavar="REF", help="Data to train on, as for `compose distill`. May be repeated.")
    ] = None,
    held_out: HeldOut = None,
    share: HeldShare = SHARE,
    teacher: Annotated[
        str | None, typer.Option(metavar="SOURCE", help="The model to learn from and compare with; left out, that of --from.")
    ] = None,
    tasks: Annotated[
        list[str] | None, typer.Option(metavar="TASK,…", help="Tasks to score on, as for `compose eval`. May be repeated.")
    ] = None,
    lengths: Annotated[
        str | None, typer.Option(metavar="N,…", help="Tokens of a sample of a task: 512,4k, where 4k is 4,096.")
    ] = None,
    samples: Annotated[int, typer.Option(help="Samples of each task at each length.")] = 100,
    seeds: Annotated[str, typer.Option(metavar="N,…", help="Seeds; each variant is built and trained with each of them.")] = "0",
    text: TextOption = None,
    haystack: HaystackOption = None,
    babi: Babi = None,
    settings: Set = None,
    device: RunsOn = "cpu",
    bfloat16: Bfloat16 = False,
    jobs: Annotated[int | None, typer.Option(help="Steps at a time; left out, one for each core, or one on a GPU.")] = None,
    ray: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="Run on a Ray cluster: its address, auto, or local to start one here.")
    ] = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Build, train and score every variant of a sweep.

    Each step is named by all that decides its result, and runs once: variants that begin alike share their first steps, and the
    same call again continues one that was stopped. Where a variant fails, the others still run; the exit code is then 1.
    """
    at_once("Planning the variants", quiet=quiet or as_json)
    with watching(quiet=quiet, visible=not as_json) as tell:
        report = composer.ablate(
            specs,
            source,
            out=out,
            fresh=fresh,
            tokenizer=tokenizer,
            data=data or (),
            held_out=held_out or (),
            share=share,
            teacher=teacher,
            tasks=tasks or (),
            lengths=() if lengths is None else lengths,
            samples=samples,
            seeds=seeds,
            text=text,
            haystack=haystack,
            babi=babi,
            overrides=settings or (),
            device=device,
            bfloat16=bfloat16,
            jobs=1 if jobs is None and ray is not None else jobs,
            ray=ray,
            progress=tell or False,
        )
    _print(report, out, as_json=as_json)
    if report.failed:
        raise typer.Exit(FAILED)


def _print(report: AblationReport, out: Path, *, as_json: bool) -> None:
    from composer.ablation.table import cells, remarks

    if as_json:
        print_json(report.model_dump(mode="json"))
        return
    headers, rows = cells(report)
    heading(f"Ablation {shown(out)}")
    print_table(rows, headers=headers, right=range(len(headers) - len(report.columns), len(headers)), wrap=False)
    for remark in remarks(report):
        say(f"  {remark}")


def watching(*, quiet: bool, visible: bool = True) -> AbstractContextManager[OnStep | None]:
    """How an ablation goes: a bar on a terminal, a line as each step ends elsewhere."""
    return bars.watching(
        "bar",
        "count",
        "elapsed",
        "text",
        bar=bar_of,
        line=_line,
        quiet=quiet,
        visible=visible,
    )


def _line(step: AblationStep | None, figures: Figures, done: int, total: int) -> None:
    if step is not None:
        say(f"{done}/{total}  {outcome_in_words(step, figures)}", err=True)
    elif done:
        say(f"{done}/{total}  found done", err=True)
