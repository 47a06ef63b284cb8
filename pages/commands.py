"""The page of all commands, out of their options classes."""

from __future__ import annotations

import inspect
from dataclasses import MISSING
from typing import Literal, get_args, get_origin

from composer.cli.main import COMMANDS, load_command
from composer.options.classes import SAME, Option, options_of
from composer.options.command import Command, Screen

TITLE = """# Commands

Every command with its options. `compose COMMAND --help` prints the same, and `help(composer.distill)` has them as parameters.
`make docs` writes this page.
"""


def page() -> str:
    return "\n".join([TITLE, *(section(load_command(name)) for name in sorted(COMMANDS))])


def section(command: Command) -> str:
    options = {**options_of(command.options), **{name: options_of(Screen)[name] for name in command.screen}}
    rows = [row(name, option) for name, option in options.items() if not option.is_hidden]
    table = "".join(["| option | what it sets | default |\n|---|---|---|\n", *rows]) if rows else ""
    return f"## compose {command.name}\n\n{inspect.getdoc(command.options)}\n\n{table}"


def row(name: str, option: Option) -> str:
    words = "|".join(get_args(option.kind)) if get_origin(option.kind) is Literal else name.upper()
    value = "" if option.is_argument or option.kind is bool else f" {option.metavar or words}"
    default = option.default if option.command_default is SAME else option.command_default
    is_set = default is not None and default is not False and default != ()
    default_cell = "required" if default is MISSING else f"`{default}`" if is_set else ""
    cells = (f"`{', '.join(option.flags)}{value}`", option.description, default_cell)
    return "| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |\n"
