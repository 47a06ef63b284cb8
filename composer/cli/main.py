"""``compose``: all commands, and the handling of errors."""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

import composer
from composer.cli.ablate import ablate
from composer.cli.bench import bench
from composer.cli.build import build
from composer.cli.chat import chat
from composer.cli.check import check
from composer.cli.diff import diff
from composer.cli.distill import distill, merge, train
from composer.cli.draw import draw
from composer.cli.eval import evaluate
from composer.cli.explain import explain
from composer.cli.export import export
from composer.cli.generate import generate
from composer.cli.hints import add_hint
from composer.cli.inspect import inspect
from composer.cli.lock import lock
from composer.cli.logits import logits
from composer.cli.new import new, schema
from composer.cli.parts import parts
from composer.cli.push import push
from composer.cli.read import read
from composer.cli.sample import sample
from composer.cli.screen import INTERRUPTED, MISTAKE, notices_shown, print_json, print_mistake, replace_what_cannot_be_shown, say
from composer.cli.select import select
from composer.cli.serve import serve
from composer.cli.show import show
from composer.cli.tasks import tasks
from composer.cli.verify import verify
from composer.cli.view import view
from composer.errors import ComposerError, Mistake, OutputError, Stopped, system_message
from composer.escape import escape_message
from converters.errors import ConverterError

JSON = "composer as JSON"
"""The key in a context's ``meta`` for whether the output is JSON."""


class Commands(TyperGroup):
    """A user's mistake ends in its message alone, on stderr (with --json as JSON on stdout, too), and in exit code 2; a signal in
    128 and its number."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        ctx.meta[JSON] = "--json" in args
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
            add_hint(error)
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


COMMANDS = (
    build,
    lock,
    distill,
    train,
    merge,
    export,
    push,
    evaluate,
    bench,
    ablate,
    select,
    new,
    check,
    show,
    diff,
    draw,
    parts,
    tasks,
    schema,
    explain,
    inspect,
    read,
    generate,
    logits,
    chat,
    sample,
    serve,
    verify,
    view,
)
for command in COMMANDS:
    app.command(command.name)(command.callback)


def main() -> None:
    """The console script."""
    try:
        app(prog_name="compose")
    except OutputError as error:  # of help, which is printed before a command is invoked
        print_mistake(error, as_json=False)
        sys.exit(MISTAKE)
