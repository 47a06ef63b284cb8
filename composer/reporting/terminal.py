"""Output of the commands: plain tables that fit 80 columns, JSON, notices, and progress bars.

Bars are on stderr, and only where it is a terminal, so that what is redirected to a file holds none.

All output passes through this module, which escapes what a terminal would obey (``composer.reporting.escape``): messages always,
documents such as generated text only where stdout is a terminal.
"""

from __future__ import annotations

import json
import logging
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from io import TextIOWrapper
from typing import TYPE_CHECKING, Any, ParamSpec

import typer

from composer.errors import ComposerError, mistakes_of
from composer.reporting.escape import escape_json, escape_message, escape_text
from composer.reporting.progress import BarPart, BarUpdate, bars, on_terminal
from composer.reporting.tables import UNBOUNDED, View, text_table
from composer.system.notices import LOG
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
NO_GPU = "Triton is not supported on current platform"
"""The beginning of fla's warning when it is imported without a GPU. Commands do not show it."""
Arguments = ParamSpec("Arguments")


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
        elif not str(message).startswith(NO_GPU):
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


def print_result(result: Any, *, as_json: bool, below: str = "") -> None:
    """Print a result as JSON alone, or its view, where nothing wraps, and a line ``below``."""
    if as_json:
        print_json(result.model_dump(mode="json"))
        return
    print_view(result.view(), wrap=False)
    if below:
        say(below)


def print_mistake(error: ComposerError | ConverterError, *, as_json: bool) -> None:
    """The message on stderr, and as JSON on stdout, too."""
    say(str(error), err=True)
    if as_json:
        print_json({"mistakes": [asdict(mistake) for mistake in mistakes_of(error)]})


def at_once(message: str, *, quiet: bool) -> None:
    """Print a line to the terminal before imports that need seconds; nothing if stderr is a file."""
    if not quiet and on_terminal():
        say(f"{message} …", err=True)


@contextmanager
def watch_progress(
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
