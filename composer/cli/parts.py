"""``compose parts``."""

from __future__ import annotations

import difflib
import inspect
import json
import re
from collections.abc import Iterable
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import typer
from pydantic.fields import FieldInfo

from blocks.catalogue import CATALOGUE
from blocks.gates import gates_of
from blocks.memories.base import Memory
from blocks.part import Part
from composer.cli.options import Json
from composer.cli.screen import heading, print_json, print_table
from composer.errors import ComposerError
from composer.spec.fields import is_model, kind_words


def parts(
    name: Annotated[str | None, typer.Argument(help="A kind, or a role, to describe in full.")] = None,
    as_json: Json = False,
) -> None:
    """List the parts that a head is made of, and their equations.

    Of a part or a role that is named: description, source and fields, too.
    """
    chosen = _chosen(name)
    if as_json:
        print_json([described(part) for part in chosen])
    elif name is None:
        _print_list()
        typer.echo("\nFields, defaults and sources of one: compose parts NAME")
    else:
        for index, part in enumerate(chosen):
            if index:
                typer.echo()
            _print_part(part)


def described(part: type[Part]) -> dict[str, Any]:
    """A part as a program reads it."""
    return {
        "role": part.role,
        "kind": part.model_fields["kind"].default,
        "description": _plain(inspect.getdoc(part) or ""),
        "equation": part.equation,
        "source": part.source,
        "fields": [
            {
                "name": name,
                "type": _gates(part) if name == "gate" else _words(field.annotation, field.metadata),
                "required": field.is_required(),
                "default": None if field.is_required() else _value(field.default),
                "description": _plain(field.description or ""),
            }
            for name, field in part.model_fields.items()
            if name != "kind"
        ],
    }


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


def _print_list() -> None:
    for index, (role, kinds) in enumerate(CATALOGUE.items()):
        if index:
            typer.echo()
        heading(role)
        print_table([(kind, part.equation) for kind, part in kinds.items()])


def _print_part(part: type[Part]) -> None:
    said = described(part)
    heading(f"{said['kind']} ({said['role']})")
    print_table([(paragraph,) for paragraph in said["description"].split("\n\n")])
    print_table([("equation", said["equation"]), ("source", said["source"])])
    rows = [(field["name"], _default(field), field["type"], field["description"]) for field in said["fields"]]
    for name, default, kind, description in rows:
        typer.echo(f"\n  {name}: {default}")
        print_table([(kind,), *([(description,)] if description else [])], indent=6)


def _default(field: dict[str, Any]) -> str:
    if field["required"]:
        return "(required)"
    value = field["default"]
    if isinstance(value, list):
        return f"[{', '.join(map(str, value))}]"
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    return f"{value:g}" if isinstance(value, float) else str(value)


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
