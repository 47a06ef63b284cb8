"""``parts``: what heads are made of, from the catalogue. The fields of parts and the options of tasks have the same words."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, ClassVar, Literal, Union, get_args, get_origin

from pydantic import BaseModel

from blocks.catalogue import CATALOGUE
from blocks.gates import gates_of
from blocks.memories.base import Memory
from blocks.part import Closed, Part, field_docs
from composer.errors import ComposerError
from composer.options.classes import argument, function_of, options_class
from composer.options.command import Screen, command
from composer.options.shared import PartsOption
from composer.reporting.tables import Readable, Table, View
from composer.reporting.terminal import heading, print_json, print_table, say
from composer.spec.fields import bounds, is_model, kind_words, parts_of
from composer.spec.places import brief, near_and_all
from composer.spec.writing import format_value

_TYPES = {int: "a whole number", float: "a number", bool: "true or false", str: "text", Path: "a file or a folder"}


class FieldFacts(Closed):
    """A field of a part, or an option of a task. type: in terms of YAML. default: as in a spec; None if it is required."""

    name: str
    type: str
    required: bool
    default: Any
    description: str

    @property
    def default_text(self) -> str:
        """The default in words."""
        if self.required:
            return "(required)"
        return f"{self.default:g}" if isinstance(self.default, float) else format_value(self.default)


def field_facts(schema: type[BaseModel], name: str, words: str | None = None) -> FieldFacts:
    """Describe one field of a schema. words: its type in words, if the schema does not determine it."""
    field = schema.model_fields[name]
    return FieldFacts(
        name=name,
        type=words or _words(field.annotation, field.metadata),
        required=field.is_required(),
        default=None if field.is_required() else _value(field.get_default(call_default_factory=True)),
        description=plain(field_docs(schema).get(name, "")),
    )


def table_of(fields: Sequence[FieldFacts]) -> tuple[Table, ...]:
    """Return a row a field; no table where there is none."""
    rows = tuple((field.name, field.default_text, field.type, field.description) for field in fields)
    return (Table("", ("field", "default", "type", ""), rows),) if rows else ()


def _value(default: Any) -> Any:
    """Return a default as in a spec."""
    if isinstance(default, Part):
        options = default.model_dump(mode="json", exclude_defaults=True)
        return {"kind": default.kind, **options} if options else default.kind
    if isinstance(default, Path):
        return str(default)
    return list(default) if isinstance(default, tuple) else default


def _words(annotation: Any, limits: Iterable[Any] = ()) -> str:
    """Return the type of a field in terms of YAML. limits: pydantic's constraints beside the type."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    limits = tuple(limits)
    if parts := parts_of(limits):
        words = " | ".join(word for part in parts for word in kind_words(part))
    elif origin is Annotated:
        words = _words(arguments[0], arguments[1:])
    elif origin in (Union, UnionType):
        words = " | ".join(dict.fromkeys(_words(member) for member in arguments if member is not type(None)))
    elif origin is Literal:
        words = " | ".join(map(str, arguments))
    elif origin is tuple:
        words = f"a list of {_words(arguments[0])}"
    elif is_model(annotation):
        words = " | ".join(kind_words(annotation)) or "a mapping"
    else:
        words = _TYPES.get(annotation, getattr(annotation, "__name__", str(annotation)))  # parts from outside have any types
    return words + _bounds(limits)


def _bounds(limits: Iterable[Any]) -> str:
    signs = {"gt": ">", "ge": "≥", "lt": "<", "le": "≤"}
    terms = [f"{signs[name]} {bound:g}" for name, bound in bounds(limits).items()]
    return f" {', '.join(terms)}" if terms else ""


def plain(text: str) -> str:
    """Docstrings are wrapped and have double back-quotes; screens wrap by themselves."""
    paragraphs = re.split(r"\n\s*\n", text.replace("``", "`"))
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)


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
class PartsOptions(PartsOption):
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
            field_facts(part, name, _gates(part) if name == "gate" else None) for name in part.model_fields if name != "kind"
        ),
    )


def _choose(name: str | None) -> list[type[Part]]:
    every = [part for kinds in CATALOGUE.values() for part in kinds.values()]
    if name is None:
        return every
    wanted = name.replace("_", " ")
    matching = [part for part in every if part.role == wanted or part.model_fields["kind"].default == name]
    if not matching:
        names = sorted({*CATALOGUE, *(kind for kinds in CATALOGUE.values() for kind in kinds)})
        raise ComposerError(f"there is no part or role {brief(name)}{near_and_all(name, names, 'parts')}")
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
