"""``compose check``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

import composer
from composer.cli.options import Json, MaybeFrom, Revision, Set, complete_spec
from composer.cli.screen import print_json, print_table

if TYPE_CHECKING:
    from composer.commands.specs import CheckReport

MISTAKE = 2
SPECS = "YAML files, names of shipped specs, or folders of built models."


def check(
    specs: Annotated[list[str], typer.Argument(help=SPECS, autocompletion=complete_spec)],
    source: MaybeFrom = None,
    settings: Set = None,
    revision: Revision = None,
    as_json: Json = False,
) -> None:
    """Check specs: every mistake, with its file, line and column.

    Of a sweep, every variant. With --from they are resolved against that source, too: its sizes and its number of layers and
    heads; a spec with a trunk of its own is resolved on that.
    """
    found = composer.check(specs, source, overrides=settings or (), revision=revision)
    if as_json:
        print_json([answer.model_dump(mode="json") for answer in found.answers])
    else:
        _print(found)
    if not found.ok:
        raise typer.Exit(MISTAKE)


def _print(found: CheckReport) -> None:
    if rows := found.rows():
        print_table(rows, indent=0, wrap=False)
    for line in found.summary():
        typer.echo(line, err=not found.ok)
