"""Progress bars: on stderr, and only where it is a terminal, so that what is redirected to a file holds none."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, ParamSpec

import typer

if TYPE_CHECKING:
    from composer.training.loop import StepProgress

Column = Literal["name", "text", "bar", "count", "bytes", "speed", "elapsed", "left"]
Told = ParamSpec("Told")
LINES_A_STAGE = 10
"""Lines of progress for each stage of a training whose output is no terminal."""


class Shown(NamedTuple):
    """What a bar shows. name: which of the bars; text: None leaves what stands there."""

    name: str
    done: int
    total: int
    text: str | None = None


def on_terminal() -> bool:
    """Whether stderr is a terminal, where bars can move."""
    return sys.stderr.isatty()


def at_once(what: str, *, quiet: bool) -> None:
    """A line on the screen before all that takes seconds to import; a file of what is told needs none."""
    if not quiet and on_terminal():
        typer.echo(f"{what} …", err=True)


@contextmanager
def bars(*columns: Column, stay: bool = False) -> Iterator[Callable[[Shown], None]]:
    """A bar for each name that is shown, with these columns. stay: whether they are still there afterwards."""
    from rich import progress
    from rich.console import Console

    made: dict[Column, progress.ProgressColumn] = {
        "name": progress.TextColumn("{task.description}", markup=False),
        "text": progress.TextColumn("{task.fields[text]}", markup=False),
        "bar": progress.BarColumn(),
        "count": progress.MofNCompleteColumn(),
        "bytes": progress.DownloadColumn(),
        "speed": progress.TransferSpeedColumn(),
        "elapsed": progress.TimeElapsedColumn(),
        "left": progress.TimeRemainingColumn(),
    }
    with progress.Progress(*map(made.__getitem__, columns), console=Console(stderr=True), transient=not stay) as screen:
        tasks: dict[str, Any] = {}

        def show(shown: Shown) -> None:
            if shown.name not in tasks:
                tasks[shown.name] = screen.add_task(shown.name, total=shown.total, text="")
            text: dict[str, Any] = {} if shown.text is None else {"text": shown.text}
            screen.update(tasks[shown.name], completed=shown.done, total=shown.total, **text)

        yield show


@contextmanager
def watching(
    *columns: Column, bar: Callable[Told, Shown], line: Callable[Told, None], quiet: bool, stay: bool = False
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
def file_bars(what: str, *, quiet: bool = False) -> Iterator[Callable[[str, int, int], None] | None]:
    """A callback that takes a file's name, its bytes that are done, and its bytes; None where ``quiet``, or stderr no terminal."""
    if quiet or not on_terminal():
        yield None
        return
    with bars("name", "bar", "bytes", "speed") as show:
        yield lambda name, done, total: show(Shown(f"{what} {name}", done, total))


@contextmanager
def counting(what: str, total: int, *, quiet: bool = False) -> Iterator[Callable[[], None]]:
    """A callback for each of ``total`` things that is done."""
    if quiet or not on_terminal():
        yield lambda: None
        return
    with bars("name", "bar", "count", "left") as show:
        done = 0

        def one_more() -> None:
            nonlocal done
            done += 1
            show(Shown(what, done, total))

        show(Shown(what, 0, total))
        yield one_more


@contextmanager
def training_steps(*, quiet: bool) -> Iterator[Callable[[StepProgress], None] | None]:
    """How training goes: a bar for each stage on a terminal, ten lines a stage elsewhere."""
    with watching(
        "name",
        "bar",
        "text",
        bar=lambda step: Shown(step.stage, step.step, step.steps, _figures(step)),
        line=_line,
        quiet=quiet,
        stay=True,
    ) as watch:
        yield watch


def _line(step: StepProgress) -> None:
    if step.step % max(1, step.steps // LINES_A_STAGE) == 0 or step.step == step.steps:
        typer.echo(f"{step.stage}  {_figures(step)}", err=True)


def _figures(step: StepProgress) -> str:
    left = f"{step.seconds_left / 60:.0f} min" if step.seconds_left >= 90 else f"{step.seconds_left:.0f} s"
    share = f", {step.evaluating:.0%} to evaluate" if step.evaluating >= 0.05 else ""
    return f"{step.step:,}/{step.steps:,}  loss {step.loss:.4g}  {step.tokens_per_second:,.0f} tokens/s  {left} left{share}"
