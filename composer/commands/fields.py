"""The fields of parts and the options of tasks, in the words of ``parts`` and ``known_tasks``."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic.fields import FieldInfo

from blocks.part import Closed, Part
from composer.spec.fields import bounds, is_model, kind_words, parts_of
from composer.spec.writing import format_value
from composer.tables import Table

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


def field_facts(name: str, field: FieldInfo, words: str | None = None) -> FieldFacts:
    """Describe one field of a schema. words: its type in words, if the schema does not determine it."""
    return FieldFacts(
        name=name,
        type=words or _words(field.annotation, field.metadata),
        required=field.is_required(),
        default=None if field.is_required() else _value(field.get_default(call_default_factory=True)),
        description=plain(field.description or ""),
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
