"""``compose diff``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import composer
from composer.cli.options import Json, MaybeFrom, Revision, complete_spec
from composer.cli.screen import heading, print_json, print_table, say
from composer.spec.inherit import shown
from composer.spec.places import dotted

WHICH = "A YAML file, a shipped spec, one of a sweep (SWEEP:VARIANT), or the folder of a built model."
SpecArgument = Annotated[str, typer.Argument(help=WHICH, show_default=False, autocompletion=complete_spec)]


def diff(
    first: SpecArgument,
    second: SpecArgument,
    source: MaybeFrom = None,
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="PATH=VALUE", help="Change a value of the second: head.memory.0.size=32. May be repeated."),
    ] = None,
    revision: Revision = None,
    draw: Annotated[
        Path | None,
        typer.Option("--draw", metavar="FILE", help="Draw both beside each other, what differs marked: an .svg file."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="With --draw: replace the file.")] = False,
    as_json: Json = False,
) -> None:
    """Say what differs between two specs in meaning, not in text.

    Names, papers and recipes mean nothing, and a default means the same written out or not. With --from they are compared layer
    by layer, as they would be built on that source; without it head by head, and their own trunks where they have them.
    """
    found = composer.diff(first, second, source, overrides=overrides or (), revision=revision, draw=draw, force=force)
    if as_json:
        rows = [row.model_dump(mode="json") | {"path": dotted(row.path)} for row in found.differences]
        print_json({"specs": found.specs, "same": found.same, "hashes": found.hashes, "differences": rows})
        return
    if rows := found.rows():
        heading(found.title)
        print_table(rows)
    for line in (*found.summary(), *([] if draw is None else [f"Picture: {shown(draw)}"])):
        say(line)
