"""The closed schemas by path: the alternatives at a place of the document, and their keys.

Annotations are walked as pydantic leaves them on a model's fields: Annotated, unions, tuples, dicts and models.
"""

from __future__ import annotations

import types
from collections.abc import Iterable
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from blocks.registry import Role

Alternatives = tuple[Any, ...]
"""The types that one place of the document accepts; None is left out."""


def alternatives(annotation: Any) -> Alternatives:
    """Flatten unions: return ``(A, B, C)`` for ``A | Annotated[B | C, …] | None``. For a role, return its parts."""
    if get_origin(annotation) is Annotated:
        bare, *beside = get_args(annotation)
        return parts_of(beside) or alternatives(bare)
    if get_origin(annotation) in (Union, types.UnionType):
        return tuple(kind for member in get_args(annotation) for kind in alternatives(member))
    return () if annotation in (None, type(None)) else (annotation,)


def parts_of(beside: Iterable[Any]) -> Alternatives:
    """Return the parts of the role in a type's annotation; none if it has no role."""
    return tuple(part for item in beside if isinstance(item, Role) for part in item.values())


def alternatives_of(field: FieldInfo) -> Alternatives:
    """Return the alternatives of a model's field, whose metadata pydantic keeps apart from its annotation."""
    return parts_of(field.metadata) or alternatives(field.annotation)


def limits(annotation: Any) -> dict[str, float]:
    """Return the bounds of the numbers in an annotation: ``gt``, ``ge``, ``lt`` and ``le``."""
    bounds_by_name = bounds(get_args(annotation)[1:]) if get_origin(annotation) is Annotated else {}
    for member in () if get_origin(annotation) in (tuple, list, dict) else get_args(annotation):  # items have their own bounds
        bounds_by_name |= limits(member)
    return bounds_by_name


def bounds(beside: Iterable[Any]) -> dict[str, float]:
    """Return the bounds in pydantic's metadata of a type, by their names there."""
    constraints = [constraint for entry in beside for constraint in (entry.metadata if isinstance(entry, FieldInfo) else (entry,))]
    return {
        name: getattr(constraint, name)
        for constraint in constraints
        for name in ("gt", "ge", "lt", "le")
        if hasattr(constraint, name)
    }


def under(here: Alternatives, step: str | int) -> Alternatives:
    """Return the alternatives under a key or an index of any of these alternatives."""
    members: list[Any] = []
    for kind in here:
        origin, arguments = get_origin(kind), get_args(kind)
        if is_model(kind):
            members += alternatives_of(kind.model_fields[step]) if step in kind.model_fields else ()
        elif origin is dict and isinstance(step, str):
            members += alternatives(arguments[1])
        elif origin in (tuple, list) and isinstance(step, int):
            members += (alternative for argument in arguments if argument is not Ellipsis for alternative in alternatives(argument))
    return tuple(members)


def is_model(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, BaseModel)


def parts(here: Alternatives) -> dict[str, type[BaseModel]]:
    """Return the parts among the alternatives, by their ``kind``."""
    return {word: model for model in here if is_model(model) for word in kind_words(model)}


def kind_words(model: type[BaseModel]) -> tuple[str, ...]:
    """Return the words of a model's ``kind``; none where it is no part."""
    field = model.model_fields.get("kind")
    return get_args(field.annotation) if field and get_origin(field.annotation) is Literal else ()


def fields(here: Alternatives) -> dict[str, FieldInfo]:
    """Return the keys of the models among the alternatives."""
    return {name: field for model in here if is_model(model) for name, field in model.model_fields.items()}


def choices(here: Alternatives) -> list[str]:
    """Return the words of the Literals among the alternatives."""
    literals: Iterable[Any] = (kind for kind in here if get_origin(kind) is Literal)
    return [word for literal in literals for word in get_args(literal) if isinstance(word, str)]
