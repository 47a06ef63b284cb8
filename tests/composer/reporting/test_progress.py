"""Progress bars appear on a terminal and in a notebook, once each, and nowhere else."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest
import rich.console
from IPython import display as page
from transformers.utils import logging

from composer.commands import sample, verify
from composer.reporting.progress import BarUpdate, progress_callback, silent_transformers


def shown(done: int, total: int) -> BarUpdate:
    return BarUpdate("<things>", done, total, f"{done} of {total}")


def test_every_file_has_a_bar(terminal: rich.console.Console) -> None:
    with progress_callback(True, verify.bar_of, "name", "bar", "bytes", "speed") as moved:
        assert moved is not None
        moved("[red]one", 500, 1000)
        moved("two", 1000, 1000)
    output = terminal.export_text()
    assert "reading [red]one" in output  # no markup
    assert "0.5/1.0 kB" in output
    assert "1.0/1.0 kB" in output


def test_things_are_counted(terminal: rich.console.Console) -> None:
    with progress_callback(True, sample.bar_of, "name", "bar", "count", "left") as tell:
        assert tell is not None
        tell(2, 7)
    assert "2/7" in terminal.export_text()


def test_progress_is_shown_only_on_request(terminal: rich.console.Console) -> None:
    with progress_callback(False, shown) as tell:
        assert tell is None
    assert terminal.export_text() == ""


def test_without_a_terminal_no_bar_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    with progress_callback(True, shown) as tell:
        assert tell is None
    assert capsys.readouterr() == ("", "")


def test_callbacks_of_the_caller_are_called() -> None:
    progress: list[tuple[int, int]] = []
    with progress_callback(lambda done, total: progress.append((done, total)), shown) as tell:
        assert tell is not None
        tell(1, 2)
    assert progress == [(1, 2)]


def test_notebooks_show_one_bar_and_remove_it(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    drawn: list[str] = []
    place = SimpleNamespace(update=lambda html: drawn.append(html.data))

    def display(first: Any, *, display_id: bool) -> Any:
        assert display_id
        drawn.append(first.data)
        return place

    monkeypatch.setattr(page, "display", display)
    monkeypatch.setattr(sys.modules["IPython"], "get_ipython", lambda: SimpleNamespace(kernel=None))
    with progress_callback(True, shown) as tell:
        assert tell is not None
        tell(1, 2)
    assert drawn[0] == drawn[-1] == ""
    (bar,) = drawn[1:-1]
    assert '<progress value="1" max="2">' in bar
    assert "&lt;things&gt;  1 of 2" in bar
    assert capsys.readouterr() == ("", "")


def test_progress_settings_of_transformers_are_restored() -> None:
    bars, level = logging.is_progress_bar_enabled(), logging.get_verbosity()
    logging.enable_progress_bar()
    logging.set_verbosity_warning()
    try:
        with silent_transformers("error"):
            assert not logging.is_progress_bar_enabled()
            assert logging.get_verbosity() == logging.ERROR
        assert logging.is_progress_bar_enabled()
        assert logging.get_verbosity() == logging.WARNING
    finally:
        logging.set_verbosity(level)
        if not bars:
            logging.disable_progress_bar()
