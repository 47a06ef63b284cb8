"""Progress bars: on stderr, and only where it is a terminal, so that what is redirected to a file holds none."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, ParamSpec

import typer

from composer.cli.screen import warnings_alone
from composer.commands.training import bar_of, figures_of
from composer.progress import BarUpdate, Column, bars, on_terminal

if TYPE_CHECKING:
    from composer.training.loop import StepProgress

Told = ParamSpec("Told")
LINES_A_STAGE = 10
"""Lines of progress for each stage of a training whose output is no terminal."""


def at_once(what: str, *, quiet: bool) -> None:
    """Print a line to the terminal before imports that take seconds; nothing where stderr is a file."""
    if not quiet and on_terminal():
        typer.echo(f"{what} …", err=True)


@contextmanager
def watching(
    *columns: Column, bar: Callable[Told, BarUpdate], line: Callable[Told, None], quiet: bool, stay: bool = False
) -> Iterator[Callable[Told, None] | None]:
    """A callback for progress: on a terminal it moves a bar, elsewhere it prints lines to stderr. None where ``quiet``.

    bar: from the callback's arguments to what the bar shows. line: prints them, or nothing.
    """
    if quiet:
        yield None
    elif not on_terminal():
        yield line
    else:
        with bars(*columns, stay=stay) as show:
            yield lambda *told, **more: show(bar(*told, **more))


@contextmanager
def training_steps(*, quiet: bool, shown: bool = True) -> Iterator[Callable[[StepProgress], None] | None]:
    """How training goes: a bar for each stage on a terminal, ten lines a stage elsewhere; none of it where not ``shown``. quiet:
    notices are left out, too, and warnings stay."""
    steps = watching("name", "bar", "text", bar=bar_of, line=_line, quiet=quiet or not shown, stay=True)
    with warnings_alone() if quiet else nullcontext(), steps as watch:
        yield watch


def _line(step: StepProgress) -> None:
    if step.step % max(1, step.steps // LINES_A_STAGE) == 0 or step.step == step.steps:
        typer.echo(f"{step.stage}  {figures_of(step)}", err=True)
