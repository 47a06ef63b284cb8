"""Progress: bars on a terminal, one in a notebook, and none where the output is redirected to a file."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple, ParamSpec
from warnings import catch_warnings, filterwarnings

from composer.reporting.escape import escape_html, escape_message

BarPart = Literal["name", "text", "bar", "count", "bytes", "speed", "elapsed", "left"]
Severity = Literal["error", "critical"]
Arguments = ParamSpec("Arguments")


class BarUpdate(NamedTuple):
    """One update of a bar. name: of the bar; text: None leaves the text as it is."""

    name: str
    done: int
    total: int
    text: str | None = None


def on_terminal() -> bool:
    """Whether stderr is a terminal, where bars can move."""
    return sys.stderr.isatty()


def in_notebook() -> bool:
    """Whether the program runs in a notebook, which can show a bar."""
    interactive = sys.modules.get("IPython")
    shell = None if interactive is None else interactive.get_ipython()
    return shell is not None and hasattr(shell, "kernel")


@contextmanager
def bars(*columns: BarPart, stay: bool = False) -> Iterator[Callable[[BarUpdate], None]]:
    """Show a bar for each name, with these columns. stay: leave the bars on the screen afterwards."""
    from rich import progress
    from rich.console import Console

    column_of: dict[BarPart, progress.ProgressColumn] = {
        "name": progress.TextColumn("{task.description}", markup=False),
        "text": progress.TextColumn("{task.fields[text]}", markup=False),
        "bar": progress.BarColumn(),
        "count": progress.MofNCompleteColumn(),
        "bytes": progress.DownloadColumn(),
        "speed": progress.TransferSpeedColumn(),
        "elapsed": progress.TimeElapsedColumn(),
        "left": progress.TimeRemainingColumn(),
    }
    with progress.Progress(*map(column_of.__getitem__, columns), console=Console(stderr=True), transient=not stay) as screen:
        tasks: dict[str, Any] = {}

        def show(shown: BarUpdate) -> None:
            if shown.name not in tasks:
                tasks[shown.name] = screen.add_task(escape_message(shown.name), total=shown.total, text="")
            text: dict[str, Any] = {} if shown.text is None else {"text": escape_message(shown.text)}
            screen.update(tasks[shown.name], completed=shown.done, total=shown.total, **text)

        yield show


@contextmanager
def draw_bar() -> Iterator[Callable[[BarUpdate], None]]:
    """A bar in a notebook, without widgets, which is removed after the block."""
    from IPython.display import HTML, display

    place = display(HTML(""), display_id=True)
    assert place is not None, "a display with an id has a handle"

    def show(shown: BarUpdate) -> None:
        label = escape_html(f"{shown.name}  {shown.text or f'{shown.done:,}/{shown.total:,}'}")
        place.update(HTML(f'<progress value="{shown.done}" max="{shown.total}"></progress> <span>{label}</span>'))

    try:
        yield show
    finally:
        place.update(HTML(""))


@contextmanager
def progress_callback(
    progress: bool | Callable[Arguments, None], shown: Callable[Arguments, BarUpdate], *columns: BarPart
) -> Iterator[Callable[Arguments, None] | None]:
    """The callback to report progress to: None for False, a bar for True, the caller's own function otherwise.

    A bar needs a terminal or a notebook. shown: converts the callback's arguments to the text and counts of the bar."""
    if not isinstance(progress, bool):
        yield progress
    elif progress and in_notebook():
        with draw_bar() as show:
            yield lambda *arguments, **more: show(shown(*arguments, **more))
    elif progress and on_terminal():
        with bars(*(columns or ("name", "bar", "text"))) as show:
            yield lambda *arguments, **more: show(shown(*arguments, **more))
    else:
        yield None


def silence_transformers(least: Severity | None = None) -> None:
    """transformers draws no bars from now on. least: the severity from which it still logs; None leaves its log as it is."""
    logging = _log_of_transformers()
    logging.disable_progress_bar()
    if least is not None:
        logging.set_verbosity(logging.log_levels[least])


@contextmanager
def silent_transformers(least: Severity | None = None) -> Iterator[None]:
    """``silence_transformers`` for the block.

    Import transformers inside the block: in a notebook, its bars need widgets at their import.
    """
    logging = _log_of_transformers()
    bars_were, level = logging.is_progress_bar_enabled(), logging.get_verbosity()
    silence_transformers(least)
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars_were:
            logging.enable_progress_bar()


def _log_of_transformers() -> Any:
    with catch_warnings():
        filterwarnings("ignore", message="IProgress not found")
        from transformers.utils import logging

    return logging
