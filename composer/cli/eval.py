"""``compose eval``."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import TYPE_CHECKING

from composer.cli import bars
from composer.cli.bars import at_once
from composer.cli.derived import Screen, command
from composer.cli.screen import print_json, print_view, say
from composer.commands.eval import EvaluateOptions, bar_of, cell_of, run_evaluate
from composer.spec.inherit import short_path

if TYPE_CHECKING:
    from composer.evaluation.options import EvaluationProgress


@command(EvaluateOptions, "quiet", "as_json", name="eval")
def evaluate(options: EvaluateOptions, screen: Screen) -> None:
    at_once("Reading the models and their tasks", quiet=screen.hides_progress)
    with watching(quiet=screen.hides_progress) as watch:
        report = run_evaluate(replace(options, progress=watch or False))
    if screen.as_json:
        print_json(report.model_dump(mode="json"))
        return
    print_view(report.view(), wrap=False)
    if options.out is not None:
        say(f"\nResults, tables and plots: {short_path(options.out)}")


def watching(*, quiet: bool) -> AbstractContextManager[Callable[[EvaluationProgress], None] | None]:
    """Report the progress of an evaluation: a bar on a terminal; otherwise a line while samples are made, and one at the start of
    each cell."""
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
