"""``compose parts``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

import composer
from composer.cli.options import Json
from composer.cli.screen import heading, print_json, print_table, say

if TYPE_CHECKING:
    from composer.commands.parts import PartFacts


def parts(
    name: Annotated[str | None, typer.Argument(help="A kind, or a role, to describe in full.")] = None,
    as_json: Json = False,
) -> None:
    """List the parts that a head is made of, and their equations.

    Of a part or a role that is named: description, source and fields, too.
    """
    found = composer.parts(name)
    if as_json:
        print_json([part.model_dump(mode="json") for part in found.parts])
    elif name is None:
        _print_list(found.parts)
        say("\nFields, defaults and sources of one: compose parts NAME")
    else:
        for index, part in enumerate(found.parts):
            if index:
                say()
            _print_part(part)


def _print_list(parts: Sequence[PartFacts]) -> None:
    for index, role in enumerate(dict.fromkeys(part.role for part in parts)):
        if index:
            say()
        heading(role)
        print_table([(part.kind, part.equation) for part in parts if part.role == role])


def _print_part(part: PartFacts) -> None:
    heading(f"{part.kind} ({part.role})")
    print_table([(paragraph,) for paragraph in part.description.split("\n\n")])
    print_table([("equation", part.equation), ("source", part.source)])
    for field in part.fields:
        say(f"\n  {field.name}: {field.said}")
        print_table([(field.type,), *([(field.description,)] if field.description else [])], indent=6)
