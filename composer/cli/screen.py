"""Output of the commands: plain tables that fit 80 columns, JSON, and notices.

All output passes through this module, which escapes what a terminal would obey (``composer.escape``): messages always, documents
such as generated text only where stdout is a terminal.
"""

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
from composer.escape import escape_json, escape_message, escape_text
from composer.notices import LOG
from composer.tables import UNBOUNDED, View, text_table
from converters.errors import ConverterError

if TYPE_CHECKING:
    from rich.console import Console

WIDTH = 80
"""Columns without a terminal."""
WIDEST = 120
HUB_LOG = "converters.hub"
"""The log of `converters/hub.py`, which is not imported for its name alone."""
MISTAKE, INTERRUPTED = 2, 130
"""Exit codes."""
PATIENCE = 10.0
"""Seconds that one of several processes waits for the others before it exits."""


def print_json(value: Any) -> None:
    """Print JSON on stdout. Unsafe characters, and those that the terminal's encoding lacks, are escaped as JSON does."""
    text = escape_json(json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False))
    try:
        text.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:
        text = json.dumps(value, indent=2, allow_nan=False)
    typer.echo(text)


def say(text: str = "", *, err: bool = False) -> None:
    """Print a message for people, on stdout or stderr, with escapes for what a terminal would obey."""
    typer.echo(escape_message(text), err=err)


def print_document(text: str, end: str = "\n") -> None:
    """Print a text that is itself the result, on stdout: escaped on a terminal, and to a file or a pipe as it is."""
    sys.stdout.write((escape_text(text) if sys.stdout.isatty() else text) + end)
    sys.stdout.flush()


def replace_what_cannot_be_shown() -> None:
    """Characters that the terminal's encoding lacks become question marks, instead of ending the command."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors="replace")


class _OnStderr(logging.Handler):
    """Shows a log record at once."""

    def emit(self, record: logging.LogRecord) -> None:
        say(self.format(record), err=True)


class _EscapedRecord(logging.LogRecord):
    """A log record of any library, whose message is safe to show."""

    def getMessage(self) -> str:
        return escape_message(super().getMessage())


@contextmanager
def notices_shown() -> Iterator[None]:
    """For the block, notices, the Hub's log and warnings of other forms are printed to stderr, as plain lines.

    Log records and warnings of other libraries are escaped, too.
    """
    shown, logs = _OnStderr(), (LOG, logging.getLogger(HUB_LOG))
    before = [(log.level, log.propagate) for log in logs]
    show_warning, record_factory = warnings.showwarning, logging.getLogRecordFactory()

    def plain(message: Warning | str, category: type[Warning], *place: Any, **more: Any) -> None:
        if category.__module__.partition(".")[0] == "composer":
            say(str(message), err=True)
        else:
            show_warning(escape_message(str(message)), category, *place, **more)

    warnings.showwarning = plain
    logging.setLogRecordFactory(_EscapedRecord)
    for log in logs:
        log.addHandler(shown)
        log.setLevel(logging.INFO)
        log.propagate = False
    try:
        yield
    finally:
        warnings.showwarning = show_warning
        logging.setLogRecordFactory(record_factory)
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
    console().print(escape_message(text), style="bold", soft_wrap=True)


def print_report(report: Any, *, as_json: bool) -> None:
    """Print a short report: its title, its tables, and its notes, indented. as_json: print it as JSON alone."""
    if as_json:
        print_json(report.model_dump(mode="json"))
        return
    view = report.view()
    heading(view.title)
    for table in view.tables:
        print_table(table.rows, headers=table.headers)
    for note in view.notes:
        say(f"  {note}")


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
    say(str(error), err=True)
    if as_json:
        print_json({"mistakes": [asdict(mistake) for mistake in mistakes_of(error)]})


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
