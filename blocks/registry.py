"""The parts of each role, by kind: those of this project, and those that other packages and files add. A role is also the
annotation of a field that accepts any of its parts: ``gate: GateConfig``, where ``GateConfig`` is ``Annotated[Gate, GATES]``.
pydantic reads such a field as a union of the role's parts that is discriminated by ``kind``.

The kinds of this project have no dot, and those from outside have one or more: ``mypackage.mygate``. So the two never clash.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from threading import RLock
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin

from pydantic import BaseModel, GetCoreSchemaHandler
from pydantic_core import CoreSchema, core_schema

from blocks.part import Closed, Part, bare

if TYPE_CHECKING:
    from blocks.pattern import Pattern

KIND = re.compile(r"[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*)+\Z")
"""The kind of a part from outside."""
LOCK = RLock()


class RegistrationError(ValueError):
    """A part, or the module or file that it is in, cannot be registered."""


class Role(Mapping[str, type[Part]]):
    """The parts of a role by kind. base: the class that all of them extend.

    Of a role with one part of this project, a mapping without a ``kind`` is that part.
    """

    def __init__(self, name: str, base: type[Part], *parts: type[Part]) -> None:
        self.name, self.base = name, base
        self.built_in = {kind_of(part): part for part in parts}
        self.outside: dict[str, type[Part]] = {}

    def __getitem__(self, kind: str) -> type[Part]:
        return self._parts()[kind]

    def __iter__(self) -> Iterator[str]:
        return iter(self._parts())

    def __len__(self) -> int:
        return len(self._parts())

    def __hash__(self) -> int:
        return id(self)

    def __eq__(self, other: object) -> bool:
        return self is other

    def _parts(self) -> dict[str, type[Part]]:
        from blocks.external_parts import register_installed

        register_installed()
        return {**self.built_in, **self.outside}

    @property
    def default_kind(self) -> str | None:
        """The kind of a mapping that has none; None where it has to have one."""
        return next(iter(self.built_in)) if len(self.built_in) == 1 else None

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        choices = {kind: handler.generate_schema(part) for kind, part in self.items()}
        if len(choices) == 1:
            (schema,) = choices.values()
            return core_schema.no_info_before_validator_function(bare, schema)
        schema = core_schema.tagged_union_schema(choices, "kind", strict=False, from_attributes=True)
        return core_schema.no_info_before_validator_function(self._complete, schema)

    def _complete(self, value: Any) -> Any:
        """Write a bare word as a mapping, and add the kind that may be left out."""
        value = bare(value)
        if self.default_kind is not None and isinstance(value, dict) and "kind" not in value:
            return {"kind": self.default_kind, **value}
        return value


def kind_of(part: type[Part]) -> str:
    """Return the word of a part's ``kind``. Raises RegistrationError for a class without one."""
    field = part.model_fields.get("kind")
    words = get_args(field.annotation) if field is not None and get_origin(field.annotation) is Literal else ()
    if field is None or len(words) != 1 or field.default != words[0] or not isinstance(words[0], str):
        raise RegistrationError(
            f'{part.__qualname__} has no kind; expected a field such as `kind: Literal["mine.gate"] = "mine.gate"`'
        )
    return words[0]


def add_parts(parts: Iterable[type[Part]], roles: Mapping[str, Role]) -> None:
    """Add parts from outside to their roles. All are added, or none. Raises RegistrationError for a part that is incomplete, or
    whose kind another part has."""
    with LOCK:
        kinds: dict[tuple[str, str], type[Part]] = {}
        for part in parts:
            role, kind = _role_of(part, roles), kind_of(part)
            if not KIND.match(kind):
                raise RegistrationError(
                    f"{part.__qualname__} has the kind `{kind}`; expected one with a dot, in lower-case letters, digits and _, "
                    f"such as `mypackage.{kind}`"
                )
            other = kinds.get((role.name, kind)) or role.outside.get(kind)
            if other is not None and other is not part:
                raise RegistrationError(
                    f"the kind `{kind}` is registered already, by {other.__qualname__} in {other.__module__}. Choose another kind "
                    f"for {part.__qualname__} in {part.__module__}"
                )
            kinds[role.name, kind] = part
        new = {key: part for key, part in kinds.items() if key[1] not in roles[key[0]].outside}
        for (name, kind), part in new.items():
            roles[name].outside[kind] = part
        if new:
            rebuild_schemas()


def _role_of(part: type[Part], roles: Mapping[str, Role]) -> Role:
    """Return the role of a part from outside. Raises RegistrationError if it lacks what every part has."""
    missing = [name for name in ("role", "equation", "source") if not isinstance(getattr(part, name, None), str)]
    if missing:
        raise RegistrationError(f"{part.__qualname__} has no `{missing[0]}`; expected a ClassVar[str] of this name")
    role = roles.get(part.role)
    if role is None:
        raise RegistrationError(f"{part.__qualname__} has the role `{part.role}`; expected one of {', '.join(roles)}")
    if not issubclass(part, role.base):
        raise RegistrationError(
            f"{part.__qualname__} has the role `{part.role}` and does not extend {role.base.__module__}.{role.base.__qualname__}"
        )
    return role


def rebuild_schemas() -> None:
    """Rebuild the schemas that contain a role, so that they accept its new parts. Schemas that were not used yet need no
    rebuild."""
    done: dict[type[BaseModel], bool] = {}
    for model in _subclasses(Closed):
        _rebuild(model, done)


def _rebuild(model: type[BaseModel], done: dict[type[BaseModel], bool]) -> bool:
    """Build a model's schema anew where it contains a role, after those of the models inside. Return whether it contains one."""
    if model not in done:
        done[model] = False  # for a model that contains itself
        inside = [item for field in model.model_fields.values() for item in (field.annotation, *field.metadata)]
        contains = [_rebuild_inside(item, done) for item in inside]  # of all of them, also after the first that contains one
        done[model] = any(contains)
        if done[model] and model.__pydantic_complete__:
            model.model_rebuild(force=True)
    return done[model]


def _rebuild_inside(annotation: Any, done: dict[type[BaseModel], bool]) -> bool:
    if isinstance(annotation, Role):
        for part in (*annotation.built_in.values(), *annotation.outside.values()):
            _rebuild(part, done)
        return True
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return _rebuild(annotation, done)
    inside = [_rebuild_inside(item, done) for item in (*get_args(annotation), *getattr(annotation, "__metadata__", ()))]
    return any(inside)


def _subclasses(model: type[BaseModel]) -> Iterator[type[BaseModel]]:
    for child in model.__subclasses__():
        yield child
        yield from _subclasses(child)


class Patterns:
    """The patterns of this project, and those from outside, which are tried first."""

    def __init__(self, *built_in: Pattern) -> None:
        self.built_in = built_in
        self.outside: tuple[Pattern, ...] = ()

    def __iter__(self) -> Iterator[Pattern]:
        from blocks.external_parts import register_installed

        register_installed()
        return iter((*self.outside, *self.built_in))
