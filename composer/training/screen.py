"""How a run of training reports on a terminal: bars, lines of progress, and one report of several processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING

import typer

from composer.errors import ComposerError
from composer.reporting.progress import BarUpdate
from composer.reporting.terminal import INTERRUPTED, MISTAKE, print_mistake, say, watch_progress
from composer.reporting.words import duration
from composer.system.devices import processes_started

if TYPE_CHECKING:
    from composer.training.loop import StepProgress

PATIENCE = 10.0
"""Seconds that one of several processes waits for the others before it exits."""
LINES_A_STAGE = 10
"""Lines of progress for each stage of a training whose output is no terminal."""


@contextmanager
def report_once(*, as_json: bool = False) -> Iterator[bool]:
    """Make a group of the processes that torchrun has started, of which one reports. Yield whether it is this one.

    An error of all processes is printed by the first one. The others exit after it, because torchrun ends all processes as soon as
    one exits.
    """
    if processes_started() == 1:
        yield True
        return
    from composer.training.processes import is_first, meet, process_group

    with process_group():
        try:
            yield is_first()
        except ComposerError as error:
            if is_first():
                print_mistake(error, as_json=as_json)
            if not meet(PATIENCE) and not is_first():  # an error that only this process has
                print_mistake(error, as_json=as_json)
            raise typer.Exit(MISTAKE) from error
        except KeyboardInterrupt as error:
            if is_first():
                raise
            raise typer.Exit(INTERRUPTED) from error


def training_steps(*, quiet: bool, visible: bool = True) -> AbstractContextManager[Callable[[StepProgress], None] | None]:
    """Report the progress of training: a bar for each stage on a terminal, otherwise ten lines per stage."""
    return watch_progress("name", "bar", "text", bar=training_bar, line=_line, quiet=quiet, visible=visible, stay=True)


def _line(step: StepProgress) -> None:
    if step.step % max(1, step.steps // LINES_A_STAGE) == 0 or step.step == step.steps:
        say(f"{step.stage}  {figures_of(step)}", err=True)


def training_bar(step: StepProgress) -> BarUpdate:
    """Return the progress of a stage, as a bar shows it."""
    return BarUpdate(step.stage, step.step, step.steps, figures_of(step))


def figures_of(step: StepProgress) -> str:
    """Return the figures of a step in words."""
    if step.loss is None:
        return f"{step.step:,}/{step.steps:,}  {duration(step.seconds_left)} left"
    share = f", {step.evaluating:.0%} to evaluate" if step.evaluating >= 0.05 else ""
    speed, remaining = f"{step.tokens_per_second:,.0f} tokens/s", f"{duration(step.seconds_left)} left"
    return f"{step.step:,}/{step.steps:,}  loss {step.loss:.4g}  {speed}  {remaining}{share}"
