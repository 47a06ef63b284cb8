"""``compose bench``."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import TYPE_CHECKING

from composer.cli import bars
from composer.cli.bars import at_once
from composer.cli.derived import Screen, command
from composer.cli.screen import print_json, print_view, say
from composer.commands.bench import BenchCommandOptions, bar_of, run_bench
from composer.spec.inherit import short_path

if TYPE_CHECKING:
    from composer.benching.options import BenchProgress


@command(BenchCommandOptions, "quiet", "as_json")
def bench(options: BenchCommandOptions, screen: Screen) -> None:
    at_once("Reading the models", quiet=screen.hides_progress)
    with watching(quiet=screen.hides_progress) as watch:
        report = run_bench(replace(options, progress=watch or False))
    if screen.as_json:
        print_json(report.model_dump(mode="json"))
        return
    print_view(report.view(), wrap=False)
    if options.out is not None:
        say(f"Report, table and plots: {short_path(options.out)}")


def watching(*, quiet: bool) -> AbstractContextManager[Callable[[BenchProgress], None] | None]:
    """Report the progress of a bench: a bar on a terminal, otherwise a line at the start of each cell."""
    return bars.watching(
        "text",
        "bar",
        "count",
        "elapsed",
        bar=bar_of,
        line=lambda progress: say(f"{progress.done}/{progress.total}  {progress.what}", err=True),
        quiet=quiet,
    )
