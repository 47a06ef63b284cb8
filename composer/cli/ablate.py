"""``compose ablate``."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from composer.cli import bars
from composer.cli.bars import at_once
from composer.cli.derived import Screen, command
from composer.cli.screen import heading, print_json, print_view, say
from composer.commands.ablate import AblateOptions, bar_of, outcome_in_words, run_ablate
from composer.spec.inherit import short_path

if TYPE_CHECKING:
    from composer.ablation.plan import AblationStep
    from composer.ablation.report import AblationReport
    from composer.ablation.runner import OnStep
    from composer.ablation.steps import Figures

FAILED = 1
"""Exit code where a variant failed and the others were reported."""


@command(AblateOptions, "quiet", "as_json")
def ablate(options: AblateOptions, screen: Screen) -> None:
    at_once("Planning the variants", quiet=screen.hides_progress)
    with watching(quiet=screen.quiet, visible=not screen.as_json) as tell:
        report = run_ablate(replace(options, progress=tell or False))
    _print(report, options.out, as_json=screen.as_json)
    if report.failed:
        raise typer.Exit(FAILED)


def _print(report: AblationReport, out: Path, *, as_json: bool) -> None:
    if as_json:
        print_json(report.model_dump(mode="json"))
        return
    heading(f"Ablation {short_path(out)}")
    print_view(report.view(), wrap=False)


def watching(*, quiet: bool, visible: bool = True) -> AbstractContextManager[OnStep | None]:
    """Report the progress of an ablation: a bar on a terminal, otherwise a line at the end of each step."""
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
