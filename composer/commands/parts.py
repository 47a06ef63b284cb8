"""``parts``: what heads are made of, from the catalogue."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import ClassVar

from blocks.catalogue import CATALOGUE
from blocks.gates import gates_of
from blocks.memories.base import Memory
from blocks.part import Closed, Part
from composer.command_line import Screen, command
from composer.commands.fields import FieldFacts, field_facts, plain, table_of
from composer.errors import ComposerError
from composer.options import argument, function_of, options_class
from composer.shared_options import WithParts
from composer.spec.places import brief, near_and_all
from composer.tables import Readable, Table, View
from composer.terminal import heading, print_json, print_table, say


class PartFacts(Readable, Closed):
    """A part as a program reads it."""

    role: str
    kind: str
    description: str
    equation: str
    source: str
    fields: tuple[FieldFacts, ...]

    def view(self) -> View:
        lines = (self.description, f"{self.equation}    ({self.source})")
        return View(f"{self.kind} ({self.role})", table_of(self.fields), lines)


class PartsReport(Readable, Closed):
    """The named parts, or all. One alone shows itself in full."""

    parts: tuple[PartFacts, ...]

    def view(self) -> View:
        if len(self.parts) == 1:
            return self.parts[0].view()
        rows = tuple((part.role, part.kind, part.equation) for part in self.parts)
        return View("", (Table("", ("role", "kind", "equation"), rows),))


@options_class
class PartsOptions(WithParts):
    """List the parts that a head is made of, and their equations.

    Of a part or a role that is named: description, source and fields, too.
    """

    example: ClassVar[str] = 'composer.parts("hedgehog").parts[0].equation'
    name: str | None = argument("A kind, or a role, to describe in full.", default=None)


def run_parts(options: PartsOptions) -> PartsReport:
    return PartsReport(parts=tuple(map(describe_part, _choose(options.name))))


parts = function_of(PartsOptions, run_parts)


def describe_part(part: type[Part]) -> PartFacts:
    """Return the catalogue's entry of a part."""
    return PartFacts(
        role=part.role,
        kind=part.model_fields["kind"].default,
        description=plain(inspect.getdoc(part) or ""),
        equation=part.equation,
        source=part.source,
        fields=tuple(
            field_facts(name, field, _gates(part) if name == "gate" else None)
            for name, field in part.model_fields.items()
            if name != "kind"
        ),
    )


def _choose(name: str | None) -> list[type[Part]]:
    every = [part for kinds in CATALOGUE.values() for part in kinds.values()]
    if name is None:
        return every
    wanted = name.replace("_", " ")
    matching = [part for part in every if part.role == wanted or part.model_fields["kind"].default == name]
    if not matching:
        known = sorted({*CATALOGUE, *(kind for kinds in CATALOGUE.values() for kind in kinds)})
        raise ComposerError(f"there is no part or role {brief(name)}{near_and_all(name, known, 'parts')}")
    return matching


def _gates(part: type[Part]) -> str:
    """Return the gates that a memory can forget by, in words."""
    assert issubclass(part, Memory)
    return " | ".join(gates_of(part.decay_ranks))


@command(PartsOptions, "as_json")
def parts_command(options: PartsOptions, screen: Screen) -> None:
    report = run_parts(options)
    if screen.as_json:
        print_json([part.model_dump(mode="json") for part in report.parts])
    elif options.name is None:
        _print_list(report.parts)
        say("\nFields, defaults and sources of one: compose parts NAME")
    else:
        for index, part in enumerate(report.parts):
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
        say(f"\n  {field.name}: {field.default_text}")
        print_table([(field.type,), *([(field.description,)] if field.description else [])], indent=6)
