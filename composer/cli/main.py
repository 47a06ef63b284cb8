"""``compose``: all commands, and the handling of errors."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

import composer
from composer.errors import ComposerError, Mistake, OutputError, Stopped, system_message
from composer.reporting.escape import escape_message
from composer.reporting.terminal import (
    INTERRUPTED,
    MISTAKE,
    notices_shown,
    print_json,
    print_mistake,
    replace_what_cannot_be_shown,
    say,
)
from converters.errors import ConverterError

if TYPE_CHECKING:
    from composer.options.command import Command

COMMANDS = {
    "build": "Build a model: the source's weights, the spec's heads.",
    "calibrate": "Start a built model near its teacher, without training.",
    "distill": "Train a built model to imitate its teacher.",
    "train": "Train a model that was built from nothing.",
    "merge": "Merge a model's adapters into its weights.",
    "export": "Write a model that loads without this package.",
    "push": "Write a model or a spec to a repository of the Hub.",
    "eval": "Score models on tasks at several lengths.",
    "bench": "Time the prefill and the decode of models, side by side.",
    "ablate": "Build, train and score every variant of a sweep.",
    "select": "Find layers, or key heads, that should keep their own attention.",
    "new": "Write a commented spec to start from.",
    "check": "Check specs: every mistake, with its file, line and column.",
    "show": "Print a spec as YAML, or the names of the shipped specs.",
    "diff": "Show what differs between two specs in meaning, not in text.",
    "draw": "Draw a spec, or a built model, as SVG.",
    "parts": "List the parts that a head is made of, and their equations.",
    "tasks": "List the tasks to train and to score on, each with its options.",
    "schema": "Print the JSON schema of specs, for editors.",
    "explain": "Explain what a spec costs on a source, before it is built.",
    "inspect": "Inspect a model: what heads attend to, and what states recall.",
    "read": "Read a text once, and write the model's state after it.",
    "generate": "Continue a prompt with a model, or answer it with --chat.",
    "logits": "Write a teacher's logits, for students to learn from.",
    "chat": "Talk with a model in its chat template: each line is a message.",
    "sample": "Write texts with a model, to train its student on.",
    "serve": "Serve a model to programs that speak OpenAI's HTTP interface.",
    "verify": "Check a built or exported model against its record.",
    "view": "Edit a spec on a web page.",
}
"""The names of all commands, in the order of the help, each with the first line of its own help."""
MODULES = {"calibrate": "distill", "train": "distill", "merge": "distill", "schema": "new"}
"""The modules of `composer.commands` that have a command of another name."""
JSON = "composer as JSON"
"""The key in a context's ``meta`` for whether the output is JSON."""
SYNONYMS = {
    "--source": "--from",
    "--output": "--out",
    "--output-dir": "--out",
    "--override": "--set",
    "--length": "--seq",
    "--max-tokens": "--max-new-tokens",
    "--prompt": "--text",
    "--text": "--prompt",
}
"""The names that other programs have for options of this one."""


@cache
def load_command(name: str) -> Command:
    """Import a command, with what its options need."""
    from composer.options.command import Command

    module = import_module(f"composer.commands.{MODULES.get(name, name)}")
    return next(entry for entry in vars(module).values() if isinstance(entry, Command) and entry.name == name)


class _ImportedLater(Mapping[str, Any]):
    """The commands by their names, each imported at its first use."""

    def __getitem__(self, name: str) -> Any:
        if name not in COMMANDS:
            raise KeyError(name)
        single = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
        single.command(name)(load_command(name).callback)
        return typer.main.get_command(single)

    def __iter__(self) -> Iterator[str]:
        return iter(COMMANDS)

    def __len__(self) -> int:
        return len(COMMANDS)


class Commands(TyperGroup):
    """All commands. Only the one that runs is imported.

    A user's mistake ends in its message alone, on stderr (with --json as JSON on stdout, too), and in exit code 2; a signal in 128
    and its number.
    """

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands = _ImportedLater()  # type: ignore[assignment]

    def list_commands(self, ctx: Any) -> list[str]:
        return list(self.commands)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))

    def shell_complete(self, ctx: Any, incomplete: str) -> Any:
        commands, self.commands = self.commands, {name: TyperCommand(name, help=line) for name, line in COMMANDS.items()}
        try:
            return super().shell_complete(ctx, incomplete)
        finally:
            self.commands = commands

    def _prints_json(self, ctx: Any, args: list[str]) -> bool:
        """Whether --json is an option of the command, and not the value of one or an argument after ``--``."""
        command = self.get_command(ctx, args[0]) if "--json" in args else None
        valued = (
            {name for option in command.params if not getattr(option, "is_flag", True) for name in option.opts}
            if command
            else set()
        )
        options = args[: args.index("--")] if "--" in args else args
        return any(word == "--json" and before not in valued for before, word in zip(["", *options], options, strict=False))

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        ctx.meta[JSON] = self._prints_json(ctx, args)
        try:
            return super().parse_args(ctx, args)
        except Exception as error:
            _escape_refusal(error)
            raise

    def invoke(self, ctx: Any) -> Any:
        replace_what_cannot_be_shown()
        try:
            with notices_shown():
                return super().invoke(ctx)
        except (ComposerError, ConverterError) as error:
            print_mistake(error, as_json=ctx.meta[JSON])
            raise typer.Exit(MISTAKE) from error
        except OSError as error:  # of the machine: a full disk, a folder that may not be read, no folder for temporary files
            print_mistake(ComposerError(system_message(error)), as_json=ctx.meta[JSON])
            raise typer.Exit(MISTAKE) from error
        except Exception as error:
            refusal = getattr(error, "format_message", None)  # click's own errors of arguments have it
            _add_hint(error)
            _escape_refusal(error)
            if ctx.meta[JSON] and refusal is not None:
                print_json({"mistakes": [asdict(Mistake(refusal()))]})
            raise
        except Stopped as error:
            say(str(error), err=True)
            raise typer.Exit(128 + error.number) from error
        except KeyboardInterrupt as error:
            say("Interrupted.", err=True)
            raise typer.Exit(INTERRUPTED) from error


def _escape_refusal(error: Any) -> None:
    """Escape the message of one of click's own errors, which click prints, and drop pydantic's prefix."""
    if hasattr(error, "format_message"):
        error.message = escape_message(error.message).removeprefix("Value error, ")


def _add_hint(error: Any) -> None:
    """Extend one of click's errors of arguments: the options to use for an unknown one, or for a source without its option."""
    context = getattr(error, "ctx", None)
    if context is None:
        return
    options = [option for parameter in context.command.params for option in parameter.opts]
    if hasattr(error, "possibilities"):  # an unknown option
        error.possibilities = list(_suggest(error.option_name, context.command.name, options)) or error.possibilities
    elif "unexpected extra argument" in getattr(error, "message", "") and "--from" in options:
        error.message = f"{error.message}. Name a source with --from."


def _suggest(unknown: str, command: str | None, options: list[str]) -> Iterator[str]:
    """Yield the options of a command that set what an unknown option was meant to set, with the setting of the recipe."""
    if SYNONYMS.get(unknown) in options:
        yield SYNONYMS[unknown]
    if not {"--set", "--data"} <= set(options):  # no recipe is run
        return
    from composer.spec.recipe import Finetune, Recipe, Train, Transfer

    field = unknown.removeprefix("--").replace("-", "_")
    stages = {"recipe.train": Train} if command == "train" else {"recipe.transfer": Transfer, "recipe.finetune": Finetune}
    for place, model in {"recipe": Recipe, **stages}.items():
        if field in model.model_fields:
            yield f"--set {place}.{field}=…"


ABOUT = "Turn pretrained transformers into linear-attention language models, by a YAML file that describes their heads."

app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)


def _version(requested: bool) -> None:
    if requested:
        say(f"compose {composer.__version__}")
        raise typer.Exit


@app.callback(help=ABOUT)
def about(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and leave.")
    ] = False,
) -> None:
    pass


def main() -> None:
    """The console script."""
    try:
        app(prog_name="compose")
    except OutputError as error:  # of help, which is printed before a command is invoked
        print_mistake(error, as_json=False)
        sys.exit(MISTAKE)
