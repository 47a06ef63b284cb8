"""What the commands print with: plain tables that fit 80 columns, sizes in words, progress where somebody is watching."""

from __future__ import annotations

import json
import logging
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from io import TextIOWrapper
from typing import TYPE_CHECKING, Any

import typer

from composer.errors import ComposerError
from converters import hub

if TYPE_CHECKING:
    from rich.console import Console

    from composer.training.loop import Step

WIDTH = 80
"""Columns where no terminal says otherwise."""
WIDEST = 120
UNBOUNDED = 10_000
SHORT_HASH = 12
LINES_A_STAGE = 10
"""Lines of progress for each stage of a training whose output is no terminal."""
MISTAKE, INTERRUPTED = 2, 130
"""Exit codes."""
HEARD = 10.0
"""Seconds that a process of several waits for the others before it ends."""


def print_json(value: Any) -> None:
    """The one thing on stdout for a program to read: where the terminal's encoding lacks a character, as an escape."""
    text = json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False)
    try:
        text.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:
        text = json.dumps(value, indent=2, allow_nan=False)
    typer.echo(text)


def replace_what_cannot_be_shown() -> None:
    """Characters that the terminal's encoding lacks become question marks, and end no command."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors="replace")


class _OnStderr(logging.Handler):
    """Shows a log record at once."""

    def emit(self, record: logging.LogRecord) -> None:
        typer.echo(self.format(record), err=True)


def say_what_is_fetched() -> None:
    """On stderr, from now on: what the Hub is asked for."""
    log = logging.getLogger(hub.__name__)
    if not log.handlers:
        log.addHandler(_OnStderr())
        log.setLevel(logging.INFO)
        log.propagate = False


def console() -> Console:
    """Styled on a terminal, plain elsewhere; never narrower than its words need."""
    from rich.console import Console

    screen = Console(highlight=False, emoji=False, markup=False)
    screen.width = min(screen.width, WIDEST) if screen.is_terminal else WIDTH
    return screen


def heading(text: str) -> None:
    console().print(text, style="bold", soft_wrap=True)


def print_table(
    rows: Iterable[Sequence[str]],
    *,
    headers: Sequence[str] = (),
    right: Sequence[int] = (),
    indent: int = 2,
    wrap: bool = True,
) -> None:
    """Columns without lines. Only the last one wraps, and that only where ``wrap``. right: the columns of figures."""
    from rich.padding import Padding
    from rich.table import Table

    rows = [tuple(row) for row in rows]
    columns = max((len(row) for row in (headers, *rows)), default=0)
    table = Table(box=None, show_header=bool(headers), pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for index in range(columns):
        last = index == columns - 1
        table.add_column(
            headers[index] if headers else "",
            justify="right" if index in right else "left",
            no_wrap=not last,
            overflow="fold",
            min_width=None if last else max((len(row[index]) for row in (headers, *rows) if row), default=0),
        )
    for row in rows:
        table.add_row(*row)
    screen = console()
    if not wrap:
        screen.width = UNBOUNDED
    with screen.capture() as captured:
        screen.print(Padding(table, (0, 0, 0, indent)))
    typer.echo("\n".join(line.rstrip() for line in captured.get().splitlines()))


def size(count: float) -> str:
    """Bytes in words: 1.5 KiB."""
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if abs(count) < 1024:
            return f"{count:.0f} {unit}" if unit == "bytes" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def quantity(count: float) -> str:
    """A number in words: 1.5 million."""
    for unit, scale in ((" billion", 1e9), (" million", 1e6)):
        if abs(count) >= scale:
            return f"{count / scale:.2f}{unit}"
    return f"{count:,.0f}"


def ratio(factor: float) -> str:
    """How many times as small: 19.5×."""
    return f"{factor:,.2f}×" if factor < 10 else f"{factor:,.1f}×" if factor < 1000 else f"{factor:,.0f}×"


def plural(count: int, word: str) -> str:
    return f"{count:,} {word}" if count == 1 else f"{count:,} {word}s"


def ranges(numbers: Sequence[int], to: str = " to ", comma: str = ", ") -> str:
    """0 to 3, 6."""
    spans: list[list[int]] = []
    for number in sorted(numbers):
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return comma.join(str(first) if first == last else f"{first}{to}{last}" for first, last in spans)


def short_hashes(text: str) -> str:
    """Whole hashes are for --json."""
    return re.sub(rf"\b([0-9a-f]{{{SHORT_HASH}}})[0-9a-f]{{{64 - SHORT_HASH}}}\b", r"\1…", text)


@contextmanager
def progress(what: str) -> Iterator[Callable[[str, int, int], None] | None]:
    """A bar on stderr while files move, if stderr is a terminal; gone afterwards."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    columns = (TextColumn(what), TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        tasks: dict[str, Any] = {}

        def moved(name: str, done: int, total: int) -> None:
            if name not in tasks:
                tasks[name] = bar.add_task(name, total=total)
            bar.update(tasks[name], completed=done)

        yield moved


@contextmanager
def counted(what: str, total: int) -> Iterator[Callable[[], None]]:
    """A bar on stderr that moves by one at each call, if stderr is a terminal; gone afterwards."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task(what, total=total)
        yield lambda: bar.advance(task)


def without_bars() -> None:
    """Keep transformers' own bars to itself: what is redirected is to be read."""
    import transformers

    transformers.utils.logging.disable_progress_bar()


@contextmanager
def steps(*, quiet: bool) -> Iterator[Callable[[Step], None] | None]:
    """How training goes, on stderr: a bar on a terminal, ten lines a stage elsewhere."""
    if quiet:
        yield None
        return
    if not sys.stderr.isatty():
        yield _line
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[said]}"))
    with Progress(*columns, console=Console(stderr=True)) as bar:
        tasks: dict[str, Any] = {}

        def taken(step: Step) -> None:
            if step.stage not in tasks:
                tasks[step.stage] = bar.add_task(step.stage, total=step.steps, said="")
            bar.update(tasks[step.stage], completed=step.step, said=_said(step))

        yield taken


@contextmanager
def one_voice() -> Iterator[bool]:
    """The processes that torchrun has started for one command, as a group; whether this is the one that speaks.

    A mistake is told by the first alone, and nobody leaves before it has spoken: the launcher ends all as soon as one leaves.
    """
    from composer.training.processes import count, is_first, meet, together

    with together():
        try:
            yield is_first()
        except ComposerError as error:
            if count() == 1:
                raise
            if is_first():
                typer.echo(str(error), err=True)
            if not meet(HEARD) and not is_first():  # a mistake of this process alone
                typer.echo(str(error), err=True)
            raise typer.Exit(MISTAKE) from error
        except KeyboardInterrupt as error:
            if is_first():
                raise
            raise typer.Exit(INTERRUPTED) from error


def _line(step: Step) -> None:
    if step.step % max(1, step.steps // LINES_A_STAGE) == 0 or step.step == step.steps:
        typer.echo(f"{step.stage}  {_said(step)}", err=True)


def _said(step: Step) -> str:
    left = f"{step.seconds_left / 60:.0f} min" if step.seconds_left >= 90 else f"{step.seconds_left:.0f} s"
    return f"{step.step:,}/{step.steps:,}  loss {step.loss:.4g}  {step.tokens_per_second:,.0f} tokens/s  {left} left"
