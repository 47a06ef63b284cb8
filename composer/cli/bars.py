"""Progress bars: on stderr, and only where it is a terminal, so that what is redirected to a file holds none."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, ParamSpec

from composer.cli.screen import say, warnings_alone
from composer.commands.distill import bar_of, figures_of
from composer.progress import BarPart, BarUpdate, bars, on_terminal

if TYPE_CHECKING:
    from composer.training.loop import StepProgress

Arguments = ParamSpec("Arguments")
LINES_A_STAGE = 10
"""Lines of progress for each stage of a training whose output is no terminal."""


def at_once(what: str, *, quiet: bool) -> None:
    """Print a line to the terminal before imports that need seconds; nothing if stderr is a file."""
    if not quiet and on_terminal():
        say(f"{what} …", err=True)


@contextmanager
def watching(
    *columns: BarPart,
    bar: Callable[Arguments, BarUpdate],
    line: Callable[Arguments, None],
    quiet: bool,
    visible: bool = True,
    stay: bool = False,
) -> Iterator[Callable[Arguments, None] | None]:
    """A callback for progress: on a terminal it moves a bar, elsewhere it prints lines to stderr. None where progress is not
    ``visible``, and where ``quiet``: then notices are not printed either, and warnings are.

    bar: from the callback's arguments to what the bar shows. line: prints them, or nothing.
    """
    if quiet:
        with warnings_alone():
            yield None
    elif not visible:
        yield None
    elif not on_terminal():
        yield line
    else:
        with bars(*columns, stay=stay) as show:
            yield lambda *arguments, **more: show(bar(*arguments, **more))


def training_steps(*, quiet: bool, visible: bool = True) -> AbstractContextManager[Callable[[StepProgress], None] | None]:
    """Report the progress of training: a bar for each stage on a terminal, otherwise ten lines per stage."""
    return watching("name", "bar", "text", bar=bar_of, line=_line, quiet=quiet, visible=visible, stay=True)


def _line(step: StepProgress) -> None:
    if step.step % max(1, step.steps // LINES_A_STAGE) == 0 or step.step == step.steps:
        say(f"{step.stage}  {figures_of(step)}", err=True)
