"""``compose check``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

import composer
from composer.cli.options import Json, MaybeFrom, Revision, Set, complete_spec
from composer.cli.screen import print_json, print_table, say
from composer.errors import ComposerError, mistakes_of

if TYPE_CHECKING:
    from composer.commands.specs import CheckReport

MISTAKE = 2
SPECS = "YAML files, names of shipped specs, or folders of built models."


def check(
    specs: Annotated[list[str], typer.Argument(help=SPECS, autocompletion=complete_spec)],
    source: MaybeFrom = None,
    settings: Set = None,
    revision: Revision = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print mistakes alone.")] = False,
    as_json: Json = False,
) -> None:
    """Check specs: every mistake, with its file, line and column.

    Of a sweep, every variant. With --from they are resolved against that source, too: its sizes and its number of layers and
    heads; a spec with a trunk of its own is resolved on that.
    """
    try:
        found = composer.check(specs, source, overrides=settings or (), revision=revision)
    except ComposerError as error:
        if not as_json:
            raise
        found = without_source(composer.check(specs, overrides=settings or ()), error)
        say(str(error), err=True)
    if as_json:
        print_json([answer.model_dump(mode="json") for answer in found.answers])
    else:
        _print(found, quiet=quiet)
    if not found.ok:
        raise typer.Exit(MISTAKE)


def without_source(found: CheckReport, error: ComposerError) -> CheckReport:
    """The report on specs whose source cannot be read: each has that mistake, beside its own."""
    return found.model_copy(
        update={
            "answers": tuple(
                one.model_copy(update={"ok": False, "says": "", "hash": None, "mistakes": (*one.mistakes, *mistakes_of(error))})
                for one in found.answers
            )
        }
    )


def _print(found: CheckReport, *, quiet: bool) -> None:
    if (rows := found.rows()) and not quiet:
        print_table(rows, indent=0, wrap=False)
    for line in found.mistakes if quiet else found.summary():
        say(line, err=not found.ok)
