"""``compose bench``."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import composer
from composer.benching.options import REPEATS, STEPS
from composer.cli import bars
from composer.cli.bars import at_once
from composer.cli.options import Backend, Graph, Json, Quiet, RunsOn, WeightsDtype
from composer.cli.screen import print_json, print_view, say
from composer.commands.bench import bar_of
from composer.graph.lowering import AUTO
from composer.spec.inherit import shown

if TYPE_CHECKING:
    from composer.benching.options import BenchProgress
    from composer.benching.report import BenchReport


def bench(
    models: Annotated[
        list[str],
        typer.Argument(
            metavar="MODEL...",
            help="Built or distilled folders, or what one can be built from: folders of sources and models of the Hub (OWNER/NAME, "
            "OWNER/NAME@REVISION). A spec is built for the bench, with random heads, on the first model beside it. The first is "
            "the one that the others are compared with.",
        ),
    ],
    prefill: Annotated[str | None, typer.Option(metavar="N,…", help="Tokens of prompts: 1k,4k,64k, where 1k is 1,024.")] = None,
    decode: Annotated[str | None, typer.Option(metavar="N,…", help="Positions that a token is decoded at: 512,4k,128k.")] = None,
    batch: Annotated[str, typer.Option(metavar="N,…", help="Rows of a batch.")] = "1",
    repeats: Annotated[int, typer.Option(help="Timed passes over each prompt.")] = REPEATS,
    steps: Annotated[int, typer.Option(help="Timed tokens at each position.")] = STEPS,
    memory: Annotated[
        bool,
        typer.Option("--memory", help="On a CPU, measure peak memory, too, each model in a process of its own; a GPU always does."),
    ] = False,
    device: RunsOn = "cpu",
    threads: Annotated[int, typer.Option(help="Threads of the CPU.")] = 1,
    dtype: WeightsDtype = None,
    backend: Backend = AUTO,
    graph: Graph = True,
    seed: Annotated[int, typer.Option(help="Seed of the tokens, which are random.")] = 0,
    out: Annotated[
        Path | None, typer.Option("-o", "--out", metavar="FOLDER", help="Folder for the report, tables and plots.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the bench in OUT.")] = False,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Time the prefill and the decode of models, side by side.

    All models are loaded, and take turns at each length and batch: latency, tokens a second, bytes of state, peak memory. Times
    of different hours do not compare, so a bench is a single run: one that was interrupted leaves nothing, and starts anew.
    """
    at_once("Reading the models", quiet=quiet or as_json)
    with watching(quiet=quiet or as_json) as watch:
        report = composer.bench(
            models,
            prefill=() if prefill is None else prefill,
            decode=() if decode is None else decode,
            batch=batch,
            repeats=repeats,
            steps=steps,
            memory=memory,
            device=device,
            threads=threads,
            dtype=dtype,
            backend=backend,
            graph=graph,
            seed=seed,
            out=out,
            force=force,
            progress=watch or False,
        )
    _print(report, out, as_json=as_json)


def _print(report: BenchReport, out: Path | None, *, as_json: bool) -> None:
    if as_json:
        print_json(report.model_dump(mode="json"))
        return
    print_view(report.view(), wrap=False)
    if out is not None:
        say(f"Report, table and plots: {shown(out)}")


def watching(*, quiet: bool) -> AbstractContextManager[Callable[[BenchProgress], None] | None]:
    """How a bench goes: a bar on a terminal, a line as each cell begins elsewhere."""
    return bars.watching(
        "text",
        "bar",
        "count",
        "elapsed",
        bar=bar_of,
        line=lambda progress: say(f"{progress.done}/{progress.total}  {progress.what}", err=True),
        quiet=quiet,
    )
