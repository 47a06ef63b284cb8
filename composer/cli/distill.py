"""``compose distill``, ``compose train`` and ``compose merge``."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from composer.cli.bars import at_once, training_steps
from composer.cli.derived import Screen, command
from composer.cli.screen import heading, print_json, print_table, report_once, say
from composer.commands.distill import DistillOptions, MergeOptions, TrainOptions, run_distill, run_merge, run_train
from composer.devices import processes_started
from composer.spec.inherit import short_path

if TYPE_CHECKING:
    from composer.training.loop import StepProgress
    from composer.training.run import TrainingReport

Options = TypeVar("Options", DistillOptions, TrainOptions)


@command(DistillOptions, "quiet", "as_json")
def distill(options: DistillOptions, screen: Screen) -> None:
    _train(options, run_distill, "Distilling", "Distilled", screen)


@command(TrainOptions, "quiet", "as_json")
def train(options: TrainOptions, screen: Screen) -> None:
    _train(options, run_train, "Training", "Trained", screen)


@command(MergeOptions, "quiet", "as_json")
def merge(options: MergeOptions, screen: Screen) -> None:
    at_once(f"Merging {options.model}", quiet=screen.hides_progress)
    report = run_merge(options)
    if screen.as_json:
        print_json(report.model_dump(mode="json"))
    else:
        heading(f"Merged {short_path(report.out)}")


def _train(options: Options, run: Callable[[Options], TrainingReport], doing: str, did: str, screen: Screen) -> None:
    """Run stages of training, and print their report. doing, did: what the command does, in words."""
    _announce(f"{doing} {options.model}", screen)
    with report_once(as_json=screen.as_json) as speaks, _steps(screen, speaks=speaks) as watch:
        report = run(replace(options, progress=watch or False))
    if speaks:
        _print_run(report, did, screen)


def _announce(what: str, screen: Screen) -> None:
    if processes_started() == 1:
        at_once(what, quiet=screen.hides_progress)


def _steps(screen: Screen, *, speaks: bool) -> AbstractContextManager[Callable[[StepProgress], None] | None]:
    return training_steps(quiet=screen.quiet, visible=speaks and not screen.as_json)


def _print_run(report: TrainingReport, did: str, screen: Screen) -> None:
    """Print losses before and after, and where the log is."""
    from composer.training.run import losses, remarks

    if screen.as_json:
        print_json(report.model_dump(mode="json"))
        return
    heading(f"{did} {short_path(report.out)}")
    table = losses(report)
    if table.rows:
        print_table(table.rows, headers=table.headers, right=table.figures)
    for remark in remarks(report):
        say(f"  {remark}")
