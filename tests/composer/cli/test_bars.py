"""Bars move on a terminal, and nothing of them is in what is redirected."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

import pytest
import rich.console

from composer.cli.bars import Shown, counting, file_bars, training_steps, watching
from composer.training.loop import StepProgress


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[rich.console.Console]:
    with open(os.devnull, "w") as nowhere:
        screen = rich.console.Console(force_terminal=True, width=120, record=True, file=nowhere)
        monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
        monkeypatch.setattr(rich.console, "Console", lambda **_: screen)
        yield screen


def test_a_bar_for_each_file(terminal: rich.console.Console) -> None:
    with file_bars("reading") as moved:
        assert moved is not None
        moved("[red]one", 500, 1000)
        moved("two", 1000, 1000)
    shown = terminal.export_text()
    assert "reading [red]one" in shown  # no markup
    assert "0.5/1.0 kB" in shown
    assert "1.0/1.0 kB" in shown


def test_things_are_counted(terminal: rich.console.Console) -> None:
    with counting("texts", 7) as taken:
        taken()
        taken()
    assert "2/7" in terminal.export_text()


def test_a_text_stays_until_another_one_comes(terminal: rich.console.Console) -> None:
    def nothing(name: str, done: int, total: int, text: str | None = None) -> None:
        pass

    with watching("text", "bar", "count", bar=Shown, line=nothing, quiet=False) as watch:
        assert watch is not None
        watch("cells", 1, 3, "here")
        watch("cells", 2, 3)
    assert "here" in terminal.export_text().splitlines()[-1]


def test_a_stage_has_a_bar_that_stays(terminal: rich.console.Console) -> None:
    with training_steps(quiet=False) as watch:
        assert watch is not None
        watch(StepProgress("transfer", 2, 4, 0.5, 1000.0, 100.0, 0.2))
    assert "2/4  loss 0.5  1,000 tokens/s  2 min left" in terminal.export_text()


def test_elsewhere_there_are_lines_or_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with training_steps(quiet=False) as watch:
        assert watch is not None
        for step in range(1, 101):
            watch(StepProgress("transfer", step, 100, 0.5, 1000.0, 10.0, 0.0))
    with file_bars("reading") as moved:
        assert moved is None
    with counting("texts", 2) as taken:
        taken()
    with training_steps(quiet=True) as watch:
        assert watch is None
    out, err = capsys.readouterr()
    assert out == ""
    assert [line.split()[1] for line in err.splitlines()] == [f"{step}/100" for step in range(10, 101, 10)]
