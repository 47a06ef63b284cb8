"""``compose eval``."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import composer
from composer.cli import bars
from composer.cli.bars import at_once
from composer.cli.options import Babi, Backend, HaystackOption, Json, Quiet, RunsOn, TextOption, WeightsDtype
from composer.cli.screen import print_json, print_view, say
from composer.commands.evaluation import bar_of, cell_of
from composer.evaluation.options import BATCH_TOKENS, SAMPLES
from composer.graph.lowering import AUTO
from composer.spec.inherit import shown

if TYPE_CHECKING:
    from composer.evaluation.options import EvaluationProgress
    from composer.evaluation.report import EvaluationReport


def evaluate(
    models: Annotated[
        list[str],
        typer.Argument(
            metavar="MODEL...",
            help="Built or distilled folders, or what one can be built from: "
            "folders of sources and models of the Hub (OWNER/NAME, OWNER/NAME@REVISION).",
        ),
    ],
    tasks: Annotated[
        list[str] | None,
        typer.Option(metavar="TASK,…", help="Tasks, options behind them: passkey,depth=0.5,recall,perplexity are three."),
    ] = None,
    lengths: Annotated[
        str | None, typer.Option(metavar="N,…", help="Tokens of a sample, its answer included: 512,4k, where 4k is 4,096.")
    ] = None,
    samples: Annotated[
        int | None, typer.Option(help=f"Samples of each task at each length; left out, {SAMPLES}, and all of lm-eval's.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the samples.")] = 0,
    out: Annotated[
        Path | None,
        typer.Option("-o", "--out", metavar="FOLDER", help="Folder for results and plots; the same call again continues in it."),
    ] = None,
    text: TextOption = None,
    haystack: HaystackOption = None,
    babi: Babi = None,
    device: RunsOn = "cpu",
    dtype: WeightsDtype = None,
    backend: Backend = AUTO,
    batch_tokens: Annotated[str, typer.Option(metavar="N", help="Tokens of the samples of a batch; 4k is 4,096.")] = str(
        BATCH_TOKENS
    ),
    harness: Annotated[
        str | None, typer.Option("--lm-eval", metavar="TASK,…", help="Tasks of lm-eval-harness, if it is installed.")
    ] = None,
    include_path: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="With --lm-eval: a folder with tasks of your own.")
    ] = None,
    limit: Annotated[
        float | None, typer.Option(help="With --lm-eval: documents of each task, or a share below 1; left out, --samples.")
    ] = None,
    num_fewshot: Annotated[int | None, typer.Option(help="With --lm-eval: examples before each question.")] = None,
    apply_chat_template: Annotated[
        bool, typer.Option("--apply-chat-template", help="With --lm-eval: write prompts by the model's chat template.")
    ] = False,
    system_instruction: Annotated[
        str | None, typer.Option(metavar="TEXT", help="With --lm-eval: the system message, or the beginning of each prompt.")
    ] = None,
    fewshot_as_multiturn: Annotated[
        bool, typer.Option(help="With --lm-eval and a chat template: each example is a turn of its own.")
    ] = True,
    log_samples: Annotated[
        bool, typer.Option("--log-samples", help="With --lm-eval: write each request and answer into OUT/lm-eval.")
    ] = False,
    max_length: Annotated[
        int | None,
        typer.Option(
            metavar="N", help="With --lm-eval: tokens that a request keeps; left out, the positions of the model's config."
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the evaluation in OUT.")] = False,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Score models on tasks at several lengths.

    Every sample is logged as it is scored: the same call again, with the same OUT, continues an evaluation that was interrupted.
    Without OUT nothing is written.
    """
    at_once("Reading the models and their tasks", quiet=quiet or as_json)
    with watching(quiet=quiet or as_json) as watch:
        report = composer.evaluate(
            models,
            tasks or (),
            () if lengths is None else lengths,
            samples=samples,
            seed=seed,
            out=out,
            text=text,
            haystack=haystack,
            babi=babi,
            device=device,
            dtype=dtype,
            backend=backend,
            batch_tokens=batch_tokens,
            lm_eval=harness or (),
            include_path=include_path,
            limit=limit,
            num_fewshot=num_fewshot,
            apply_chat_template=apply_chat_template,
            system_instruction=system_instruction,
            fewshot_as_multiturn=fewshot_as_multiturn,
            log_samples=log_samples,
            max_length=max_length,
            force=force,
            progress=watch or False,
        )
    print_report(report, out, as_json=as_json)


def print_report(report: EvaluationReport, out: Path | None, *, as_json: bool) -> None:
    """Print the tables, what their figures are, and the folder with the results."""
    if as_json:
        print_json(report.model_dump(mode="json"))
        return
    print_view(report.view(), wrap=False)
    if out is not None:
        say(f"\nResults, tables and plots: {shown(out)}")


def watching(*, quiet: bool) -> AbstractContextManager[Callable[[EvaluationProgress], None] | None]:
    """How an evaluation goes: a bar on a terminal; elsewhere a line as samples are made, and one as each cell begins."""
    begun: list[tuple[str, str, int]] = []
    making: list[str] = []

    def line(progress: EvaluationProgress) -> None:
        if progress.making:
            if not making:
                making.append("Making the samples …")
                say(making[0], err=True)
            return
        cell = (progress.model, progress.task, progress.length)
        if cell not in begun:
            begun.append(cell)
            say(f"{cell_of(progress)}  {progress.done:,}/{progress.total:,} samples, {progress.seconds:.0f} s", err=True)

    return bars.watching(
        "text",
        "bar",
        "count",
        "left",
        bar=bar_of,
        line=line,
        quiet=quiet,
    )
