"""docs/reference/commands.md has every command and option as the option classes declare them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from composer.cli.main import COMMANDS, load_command
from composer.options.classes import options_of
from pages.commands import page

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "commands.md").read_text(encoding="utf-8")


def test_the_page_is_up_to_date() -> None:
    stale = page() != PAGE
    assert not stale, "docs/reference/commands.md is not what the options classes declare: write it anew with `make docs`"


@pytest.mark.parametrize("command", [load_command(name) for name in COMMANDS], ids=lambda command: command.name)
def test_a_command_has_its_options_and_defaults(command: object) -> None:
    name, options = command.name, options_of(command.options)  # pyright: ignore[reportAttributeAccessIssue]
    section = PAGE.partition(f"## compose {name}\n")[2].partition("\n## ")[0]
    flags = {flag for cell in re.findall(r"^\| `([^`]+)`", section, re.MULTILINE) for flag in re.findall(r"--[a-z-]+", cell)}
    expected = {
        flag for option in options.values() if not option.is_hidden for flag in re.findall(r"--[a-z-]+", " ".join(option.flags))
    }
    assert expected - flags == set()
    assert flags - expected <= {"--quiet", "--json"}


def test_values_choices_and_defaults_are_listed() -> None:
    rows = PAGE.splitlines()
    assert r"| `--stage transfer\|finetune\|all` | Stages of the recipe to run. | `all` |" in rows
    assert "| `--repeats REPEATS` | Timed passes over each prompt. | `5` |" in rows
    assert "| `--keep N` | Layers, or key heads, that keep the source's attention: a number, or a share such as 15%. |  |" in rows
    assert "| `--prompt TEXT` | Text to continue. On the command line, - reads it from stdin. | required |" in rows
