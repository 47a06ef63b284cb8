"""Progress bars appear on a terminal and not in redirected output. With --quiet, training prints warnings only."""

from __future__ import annotations

from typing import Any

import pytest
import rich.console

from composer.commands import distill
from composer.errors import TrainingError
from composer.reporting.progress import BarUpdate
from composer.reporting.terminal import watch_progress
from composer.system.notices import warn_user
from composer.training.loop import StepProgress, counter_of
from composer.training.screen import training_steps
from tests.composer.cli.conftest import Compose


def test_bar_texts_are_shown_until_the_next(terminal: rich.console.Console) -> None:
    def nothing(name: str, done: int, total: int, text: str | None = None) -> None:
        pass

    with watch_progress("text", "bar", "count", bar=BarUpdate, line=nothing, quiet=False) as watch:
        assert watch is not None
        watch("cells", 1, 3, "here")
        watch("cells", 2, 3)
    assert "here" in terminal.export_text().splitlines()[-1]


def test_finished_stages_keep_their_bar(terminal: rich.console.Console) -> None:
    with training_steps(quiet=False) as watch:
        assert watch is not None
        watch(StepProgress("transfer", 2, 4, 0.5, 1000.0, 100.0, 0.2))
        advance = counter_of("scoring", 2, watch)
        advance()
        advance()
    shown = terminal.export_text()
    assert "2/4  loss 0.5  1,000 tokens/s  2 min left" in shown
    assert "2/2  0 s left" in shown


def test_without_a_terminal_lines_or_nothing_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    with training_steps(quiet=False) as watch:
        assert watch is not None
        for step in range(1, 101):
            watch(StepProgress("transfer", step, 100, 0.5, 1000.0, 10.0, 0.0))
    with training_steps(quiet=True) as watch:
        assert watch is None
    out, err = capsys.readouterr()
    assert out == ""
    assert [line.split()[1] for line in err.splitlines()] == [f"{step}/100" for step in range(10, 101, 10)]


@pytest.mark.parametrize("command", ["distill", "train"])
def test_quiet_commands_print_warnings_alone(compose: Compose, monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    def learn(options: Any) -> None:
        options.tell("Evaluating on some rows.")
        warn_user("The data are few.")
        raise TrainingError("So much for that.")

    monkeypatch.setattr(distill, f"run_{command}", learn)
    arguments = (command, "student", "--data", "passkey", "-o", "out")
    loud, quiet = (compose(*arguments, *more).stderr.splitlines() for more in ((), ("-q",)))
    assert loud == ["Evaluating on some rows.", "The data are few.", "So much for that."]
    assert quiet == loud[1:]
