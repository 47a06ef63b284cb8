"""``compose ablate``."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from composer.cli.options import SOURCE, Bfloat16, HeldOut, HeldShare, Json, RunsOn, Set
from composer.cli.screen import heading, print_json, print_table
from composer.data.loading import SHARE
from composer.errors import AblationError
from composer.spec.inherit import shown

if TYPE_CHECKING:
    from composer.ablation.plan import Step
    from composer.ablation.runner import Workers
    from composer.ablation.steps import Figures


def ablate(
    specs: Annotated[list[str], typer.Argument(metavar="SPEC...", help="Sweeps, for all of their variants; single specs, too.")],
    out: Annotated[Path, typer.Option("-o", "--out", metavar="FOLDER", help="Where all of it goes; said again, it goes on there.")],
    source: Annotated[str | None, typer.Option("--from", metavar="SOURCE", help=SOURCE)] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="From nothing, each on its own trunk.")] = False,
    tokenizer: Annotated[str | None, typer.Option(metavar="MODEL", help="With --fresh: whose tokenizer to take.")] = None,
    data: Annotated[list[str] | None, typer.Option(metavar="REF", help="To train on, as `compose distill` takes it.")] = None,
    held_out: HeldOut = None,
    share: HeldShare = SHARE,
    tasks: Annotated[str | None, typer.Option(metavar="TASK,…", help="To score on, as `compose eval` takes them.")] = None,
    lengths: Annotated[str | None, typer.Option(metavar="N,…", help="Tokens of a sample of a task.")] = None,
    samples: Annotated[int, typer.Option(min=1, help="Of each task at each length.")] = 100,
    seeds: Annotated[str, typer.Option(metavar="N,…", help="Each variant is built and trained with each of them.")] = "0",
    text: Annotated[Path | None, typer.Option(metavar="FILE", help="What perplexity reads.")] = None,
    haystack: Annotated[Path | None, typer.Option(metavar="FILE", help="The text that needles are hidden in.")] = None,
    babi: Annotated[Path | None, typer.Option(metavar="FOLDER", help="bAbI's files, for babilong.")] = None,
    settings: Set = None,
    device: RunsOn = "cpu",
    bfloat16: Bfloat16 = False,
    jobs: Annotated[int | None, typer.Option(min=1, help="Steps at a time; left out, one for each core, or one on a GPU.")] = None,
    ray: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="Run on a Ray cluster: its address, auto, or local to start one here.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Build, train and score every variant of a sweep.

    Each step is named by all that decides its result and done once: variants share what they begin alike with, and a call that was
    stopped goes on when it is said again.
    """
    if (source is None) != fresh:
        raise AblationError("Say what to build from: --from SOURCE, or --fresh for specs with a trunk of their own.")
    if ray is not None and jobs is not None:
        raise AblationError("--jobs is for this machine; Ray has a count of its own: leave one of them out.")
    from composer.ablation.ablate import ablate as run
    from composer.ablation.plan import Request
    from composer.ablation.table import cells, remarks
    from composer.cli.screen import without_bars

    without_bars()
    files = {name: path for name, path in (("text", text), ("haystack", haystack), ("babi", babi)) if path is not None}
    request = Request(
        source=source,
        data=tuple(data or ()),
        held_out=tuple(held_out or ()),
        share=share,
        tasks=() if tasks is None else (tasks,),
        lengths=_numbers(lengths, "--lengths"),
        samples=samples,
        seeds=_numbers(seeds, "--seeds"),
        tokenizer=tokenizer,
        files=files,
        device=device,
        autocast=bfloat16,
    )
    report = run(specs, request, out, overrides=settings or (), workers=_workers(jobs, ray, device), tell=_teller(quiet=as_json))
    if as_json:
        print_json(report.model_dump(mode="json"))
        return
    headers, rows = cells(report)
    heading(f"Ablation {shown(out)}")
    print_table(rows, headers=headers, right=range(len(headers) - len(report.columns), len(headers)), wrap=False)
    for remark in remarks(report):
        typer.echo(f"  {remark}")
    if any(variant.failures for variant in report.variants):
        raise typer.Exit(1)


def _workers(jobs: int | None, ray: str | None, device: str) -> Workers:
    from composer.ablation.runner import one_process, processes

    if ray is not None:
        from composer.ablation.cluster import ray_workers

        return ray_workers(ray, gpus=0 if device == "cpu" else 1)
    count = jobs or (len(os.sched_getaffinity(0)) if device == "cpu" else 1)
    return one_process if count == 1 else processes(count)


def _teller(*, quiet: bool) -> Callable[[Step, Figures, int, int], None] | None:
    """A line on stderr as each step ends."""
    if quiet:
        return None

    def tell(step: Step, figures: Figures, done: int, total: int) -> None:
        said = "failed" if "failure" in figures else f"{figures['seconds']:.0f} s"
        typer.echo(f"{done}/{total}  {step.kind}  {step.variant.name}  seed {step.seed}  {said}", err=True)

    return tell


def _numbers(said: str | None, option: str) -> tuple[int, ...]:
    """Each once. Raises AblationError."""
    try:
        found = tuple(dict.fromkeys(int(part) for part in (said or "").split(",") if part.strip()))
    except ValueError as error:
        raise AblationError(f"{option} {said}: expected whole numbers between commas, such as 0,1,2.") from error
    if any(number < 0 for number in found) or (said is not None and not found):
        raise AblationError(f"{option} {said}: expected numbers of 0 or more.")
    return found
