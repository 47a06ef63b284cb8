"""``parts``: what heads are made of, from the catalogue."""

from __future__ import annotations

import difflib
import inspect
import re
from collections.abc import Iterable
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic.fields import FieldInfo

from blocks.catalogue import CATALOGUE
from blocks.gates import gates_of
from blocks.memories.base import Memory
from blocks.part import Closed, Part
from composer.errors import ComposerError
from composer.spec.fields import is_model, kind_words
from composer.spec.writing import said
from composer.tables import Readable, Table, View


class FieldFacts(Closed):
    """A field of a part. type: as a reader of YAML would put it. default: as a spec would say it, None where it is required."""

    name: str
    type: str
    required: bool
    default: Any
    description: str

    @property
    def said(self) -> str:
        """The default in words."""
        if self.required:
            return "(required)"
        return f"{self.default:g}" if isinstance(self.default, float) else said(self.default)


class PartFacts(Readable, Closed):
    """A part as a program reads it."""

    role: str
    kind: str
    description: str
    equation: str
    source: str
    fields: tuple[FieldFacts, ...]

    def view(self) -> View:
        rows = tuple((field.name, field.said, field.type, field.description) for field in self.fields)
        table = Table("", ("field", "default", "type", ""), rows)
        said = (self.description, f"{self.equation}    ({self.source})")
        return View(f"{self.kind} ({self.role})", (table,) if rows else (), said)


class PartsReport(Readable, Closed):
    """Parts that were asked for."""

    parts: tuple[PartFacts, ...]

    def view(self) -> View:
        rows = tuple((part.role, part.kind, part.equation) for part in self.parts)
        return View("", (Table("", ("role", "kind", "equation"), rows),))


def parts(name: str | None = None) -> PartsReport:
    """The parts that a head is made of: all, those of a role, or one of a kind. Raises ComposerError where nothing has that name.

    composer.parts("hedgehog").parts[0].equation
    """
    return PartsReport(parts=tuple(map(described, _chosen(name))))


def described(part: type[Part]) -> PartFacts:
    """All that the catalogue knows of a part."""
    return PartFacts(
        role=part.role,
        kind=part.model_fields["kind"].default,
        description=_plain(inspect.getdoc(part) or ""),
        equation=part.equation,
        source=part.source,
        fields=tuple(
            FieldFacts(
                name=name,
                type=_gates(part) if name == "gate" else _words(field.annotation, field.metadata),
                required=field.is_required(),
                default=None if field.is_required() else _value(field.default),
                description=_plain(field.description or ""),
            )
            for name, field in part.model_fields.items()
            if name != "kind"
        ),
    )


def _chosen(name: str | None) -> list[type[Part]]:
    every = [part for kinds in CATALOGUE.values() for part in kinds.values()]
    if name is None:
        return every
    wanted = name.replace("_", " ")
    found = [part for part in every if part.role == wanted or part.model_fields["kind"].default == name]
    if not found:
        known = sorted({*CATALOGUE, *(kind for kinds in CATALOGUE.values() for kind in kinds)})
        near = difflib.get_close_matches(name, known, n=1)
        guess = f'; did you mean "{near[0]}"?' if near else ""
        raise ComposerError(f'there is no part or role "{name}"{guess or "."} There are: {", ".join(known)}')
    return found


def _value(default: Any) -> Any:
    """A default as a spec would say it."""
    if isinstance(default, Part):
        said = default.model_dump(mode="json", exclude_defaults=True)
        kind = getattr(default, "kind")  # noqa: B009 - each part declares its own
        return {"kind": kind, **said} if said else kind
    return list(default) if isinstance(default, tuple) else default


def _gates(part: type[Part]) -> str:
    """Of all gates, those that this memory can forget by."""
    assert issubclass(part, Memory)
    return " | ".join(gates_of(part.decay_ranks))


def _words(annotation: Any, limits: Iterable[Any] = ()) -> str:
    """The type of a field as a reader of YAML would put it. limits: what pydantic knows of it beside the type."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        said = _words(arguments[0], arguments[1:])
    elif origin in (Union, UnionType):
        said = " | ".join(dict.fromkeys(_words(member) for member in arguments if member is not type(None)))
    elif origin is Literal:
        said = " | ".join(map(str, arguments))
    elif origin is tuple:
        said = f"a list of {_words(arguments[0])}"
    elif is_model(annotation):
        said = " | ".join(kind_words(annotation)) or "a mapping"
    else:
        said = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}[annotation]
    return said + _bounds(limits)


def _bounds(limits: Iterable[Any]) -> str:
    signs = {"gt": ">", "ge": "≥", "lt": "<", "le": "≤"}
    known = [limit for one in limits for limit in (one.metadata if isinstance(one, FieldInfo) else (one,))]
    said = [f"{sign} {getattr(limit, name):g}" for limit in known for name, sign in signs.items() if hasattr(limit, name)]
    return f" {', '.join(said)}" if said else ""


def _plain(text: str) -> str:
    """Docstrings are wrapped and have double back-quotes; screens wrap by themselves."""
    paragraphs = re.split(r"\n\s*\n", text.replace("``", "`"))
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)
