"""Slow commands print a first line at once, commands with progress accept `--quiet`, and shells complete names."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import typer.main

from composer.cli.main import app
from composer.reporting import terminal
from composer.spec.shipped import shipped_specs
from tests.composer.cli.conftest import Compose
from tests.composer.programs import printed_behind
from tests.composer.training.runs import RECIPE, SPEC, make_student, write_texts

SHORT = ("--set", "recipe.transfer.steps=2", "--set", "recipe.finetune.steps=2", "--share", "0.2")
WITH_PROGRESS = ("ablate", "bench", "build", "calibrate", "distill", "eval", "merge", "read", "sample", "train", "verify")


@pytest.fixture
def tiny(compose: Compose, teacher: Path) -> Path:
    write_texts(Path("texts.jsonl"), 24)
    make_student(Path("tiny"), teacher, SPEC | {"recipe": RECIPE})
    return Path("tiny")


@pytest.mark.parametrize("command", WITH_PROGRESS)
def test_every_command_that_shows_progress_can_be_quiet(command: str) -> None:
    parameters = typer.main.get_command(app).commands[command].params  # pyright: ignore[reportAttributeAccessIssue]
    assert [parameter.name for parameter in parameters if "--quiet" in parameter.opts and "-q" in parameter.opts] == ["quiet"]


def test_quiet_training_and_scoring_print_results_without_progress(compose: Compose, tiny: Path) -> None:
    """With --quiet, results and warnings are printed, progress is not."""
    for arguments in (
        ("distill", tiny, "--data", "texts.jsonl", *SHORT),
        ("eval", tiny, "--tasks", "mqar,pairs=2", "--lengths", 12, "--samples", 2),
    ):
        loud = compose(*arguments, *(("-o", "loud") if arguments[0] == "distill" else ()))
        quiet = compose(*arguments, "--quiet", *(("-o", "quiet") if arguments[0] == "distill" else ()))
        assert (loud.exit_code, quiet.exit_code) == (0, 0), quiet.output
        assert ("finetune  2/2" if arguments[0] == "distill" else "mqar") in loud.stderr
        assert "2/2" not in quiet.stderr
        assert "mqar" not in quiet.stderr
        assert quiet.stdout.splitlines()[1:3] == loud.stdout.splitlines()[1:3] != []


def test_the_first_line_is_printed_before_slow_imports(compose: Compose, tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The line appears on a terminal only."""
    messages: list[str] = []

    def at_once(what: str, *, quiet: bool) -> None:
        if not quiet:
            messages.append(what)
            raise KeyboardInterrupt

    for module in ("distill", "eval"):
        monkeypatch.setattr(sys.modules[f"composer.commands.{module}"], "at_once", at_once)
    monkeypatch.setitem(sys.modules, "composer.training.distill", None)  # it is not come to
    monkeypatch.setitem(sys.modules, "composer.evaluation.runner", None)
    assert compose("distill", tiny, "--data", "texts.jsonl").exit_code == 130
    assert compose("eval", tiny, "--tasks", "recall", "--lengths", 64).exit_code == 130
    assert messages == ["Distilling tiny", "Reading the models and their tasks"]


def test_the_first_line_is_for_a_terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for is_terminal, quiet, line in ((True, False, "Distilling …\n"), (True, True, ""), (False, False, "")):
        monkeypatch.setattr(terminal, "on_terminal", lambda shown=is_terminal: shown)
        terminal.at_once("Distilling", quiet=quiet)
        assert capsys.readouterr().err == line


@pytest.mark.parametrize(
    ("words", "completions"),
    [
        ("compose dist", ["distill"]),
        ("compose distill --held", ["--held-out-rows", "--held-out"]),
        ("compose show lolc", [name for name in shipped_specs() if name.startswith("lolc")]),
        ("compose build law", [name for name in shipped_specs() if name.startswith("law")]),
    ],
)
def test_shell_completion_does_not_import_torch(words: str, completions: list[str]) -> None:
    """Completion does not import torch, which would take seconds at each key press."""
    environment = {"_COMPOSE_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
    program = f"""
        import os, sys
        from composer.cli.entry import main
        os.environ |= {environment!r}
        sys.argv = ["compose"]
        try:
            main()
        except SystemExit as leaving:
            print(leaving.code or 0, {{"torch", "transformers"}} & sys.modules.keys())
    """
    *completed, last = printed_behind("import composer.cli.main", program).splitlines()
    assert (completed, last) == (completions, "0 set()")
