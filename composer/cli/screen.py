"""Output of the commands: plain tables that fit 80 columns, JSON, and notices."""

from __future__ import annotations

import json
import logging
import sys
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from io import TextIOWrapper
from typing import TYPE_CHECKING, Any

import typer

from composer.devices import processes_started
from composer.errors import ComposerError, mistakes_of
from composer.notices import LOG
from composer.tables import UNBOUNDED, View, text_table
from converters import hub
from converters.errors import ConverterError

if TYPE_CHECKING:
    from rich.console import Console

WIDTH = 80
"""Columns where no terminal says otherwise."""
WIDEST = 120
MISTAKE, INTERRUPTED = 2, 130
"""Exit codes."""
PATIENCE = 10.0
"""Seconds that one of several processes waits for the others before it exits."""


def print_json(value: Any) -> None:
    """JSON on stdout; characters that the terminal's encoding lacks are escaped."""
    text = json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False)
    try:
        text.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:
        text = json.dumps(value, indent=2, allow_nan=False)
    typer.echo(text)


def replace_what_cannot_be_shown() -> None:
    """Characters that the terminal's encoding lacks become question marks, instead of ending the command."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors="replace")


class _OnStderr(logging.Handler):
    """Shows a log record at once."""

    def emit(self, record: logging.LogRecord) -> None:
        typer.echo(self.format(record), err=True)


@contextmanager
def notices_shown() -> Iterator[None]:
    """For the block, notices, the Hub's log and warnings of slower forms are printed to stderr, as plain lines."""
    shown, logs = _OnStderr(), (LOG, logging.getLogger(hub.__name__))
    before, of_python = [(log.level, log.propagate) for log in logs], warnings.showwarning

    def plain(message: Warning | str, category: type[Warning], *place: Any, **more: Any) -> None:
        if category.__module__.partition(".")[0] == "composer":
            typer.echo(str(message), err=True)
        else:
            of_python(message, category, *place, **more)

    warnings.showwarning = plain
    for log in logs:
        log.addHandler(shown)
        log.setLevel(logging.INFO)
        log.propagate = False
    try:
        yield
    finally:
        warnings.showwarning = of_python
        for log, (level, propagate) in zip(logs, before, strict=True):
            log.removeHandler(shown)
            log.setLevel(level)
            log.propagate = propagate


@contextmanager
def warnings_alone() -> Iterator[None]:
    """For the block, of the notices only warnings are printed."""
    before = LOG.level
    LOG.setLevel(logging.WARNING)
    try:
        yield
    finally:
        LOG.setLevel(before)


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
    screen = console()
    if not wrap:
        screen.width = UNBOUNDED
    typer.echo(text_table(rows, headers=headers, right=right, indent=indent, screen=screen))


def print_view(view: View, *, wrap: bool = True) -> None:
    """Print the view of an object, which a notebook shows, too. Last columns wrap where ``wrap``."""
    screen = console()
    if not wrap:
        screen.width = UNBOUNDED
    typer.echo(view.text(screen))


def print_mistake(error: ComposerError | ConverterError, *, as_json: bool) -> None:
    """The message on stderr, and as JSON on stdout, too."""
    typer.echo(str(error), err=True)
    if as_json:
        print_json({"mistakes": [asdict(mistake) for mistake in mistakes_of(error)]})


@contextmanager
def one_voice(*, as_json: bool = False) -> Iterator[bool]:
    """Makes the processes that torchrun has started a group; gives whether this is the one that prints.

    An error of all is printed by the first alone, and no other exits before it has: torchrun ends all as soon as one exits.
    """
    if processes_started() == 1:
        yield True
        return
    from composer.training.processes import is_first, meet, together

    with together():
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
