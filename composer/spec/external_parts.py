"""Parts from outside in this project's own errors and records."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, Field, ValidationError

from blocks.catalogue import CATALOGUE
from blocks.external_parts import find_broken_packages, is_outside, origin_of, register_parts, remedy
from blocks.part import Closed, Part
from blocks.registry import RegistrationError
from composer.errors import ComposerError
from composer.spec.places import brief
from converters.bounded import MOST_RECORD, read_object_within
from converters.composed import RECORD

PACKAGE, VERSION = r"\A[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?\z", r"\A[A-Za-z0-9][A-Za-z0-9.!+_-]*\z"
"""Names and versions of packages have these characters (PEP 503, PEP 440). Messages have them in commands."""
PartReference = str | os.PathLike[str]
"""A Python module, or a file, with parts."""


class StoredPart(Closed):
    """The origin of a part from outside: an installed package and its version, or a file and its SHA-256."""

    module: str
    package: Annotated[str, Field(pattern=PACKAGE)] | None = Field(default=None, exclude_if=lambda package: package is None)
    version: Annotated[str, Field(pattern=VERSION)] | None = Field(default=None, exclude_if=lambda version: version is None)
    sha256: str | None = Field(default=None, exclude_if=lambda sha256: sha256 is None)

    def __str__(self) -> str:
        return f"{self.package} {self.version}" if self.package else f"{self.module}, SHA-256 {self.sha256}"


def use_parts(parts: PartReference | Sequence[PartReference]) -> None:
    """Register the parts of modules and files. Raises ComposerError."""
    references = [parts] if isinstance(parts, str | os.PathLike) else parts
    try:
        register_parts(references)
    except RegistrationError as error:
        raise ComposerError(f"parts: {error}") from error


def list_stored_parts(model: BaseModel) -> dict[str, StoredPart]:
    """Return the origins of the parts from outside in a document, by kind, in alphabetical order."""
    origins = {part.kind: _store(type(part)) for part in _parts_in(model)}
    return {kind: origin for kind, origin in sorted(origins.items()) if origin is not None}


def _store(part: type[Part]) -> StoredPart | None:
    """Return the origin of a part; None for a part of this project."""
    origin = origin_of(part)
    if origin is None:
        return None
    return StoredPart(module=origin.module, package=origin.package, version=origin.version, sha256=origin.sha256)


def _parts_in(value: Any) -> Iterator[Part]:
    if isinstance(value, Part):
        yield value
    items = (getattr(value, name) for name in type(value).model_fields) if isinstance(value, BaseModel) else ()
    if isinstance(value, Mapping):
        items = value.values()
    elif isinstance(value, list | tuple):
        items = value
    for item in items:
        yield from _parts_in(item)


def find_unregistered_kind(error: ValidationError) -> str | None:
    """Return the kind of the first part from outside that a document has and that is not registered; None where all are."""
    for details in error.errors(include_url=False):
        value, place = details["input"], details["loc"]
        tag = value.get("kind") if details["type"] == "union_tag_invalid" and isinstance(value, dict) else value
        if (details["type"] == "union_tag_invalid" or place[-1:] == ("kind",)) and is_outside(tag):
            return tag
    return None


def read_recorded_parts(folder: Path) -> Mapping[str, object]:
    """Return the ``parts`` of a folder's record, as JSON; empty where it has none that can be read."""
    parts = read_object_within(folder, RECORD, MOST_RECORD).get("parts")
    return parts if isinstance(parts, Mapping) else {}


def needed_part_message(model: object, kind: str, stored: Mapping[str, object]) -> str:
    """Return the message for a model's part that is not registered. stored: the ``parts`` of its record, as JSON."""
    has = f"{model} has heads with the part {brief(kind)}"
    try:
        origin = StoredPart.model_validate(stored.get(kind), strict=True)
    except ValidationError:
        return f"{has}, which is not registered. {remedy(kind)}"
    if origin.package is None:
        return f"{has} of {origin}, which is not registered: name that file with --parts"
    if (reason := find_broken_packages().get(origin.package)) is not None:
        return f"{has} of {origin}, whose parts could not be registered: {reason}"
    return f"{has} of {origin}, which is not installed here: pip install {shlex.quote(f'{origin.package}=={origin.version}')}"


def first_missing(stored: Mapping[str, object]) -> str | None:
    """Return the first of a record's parts that is not registered; None where all are."""
    return next((kind for kind in stored if not any(kind in role for role in CATALOGUE.values())), None)


def find_changed_parts(stored: Mapping[str, object]) -> Iterator[str]:
    """For each of a record's parts that is registered with another version, or from another file: what has changed."""
    for kind, entry in stored.items():
        try:
            origin = StoredPart.model_validate(entry)
        except ValidationError:
            continue
        parts = [role[kind] for role in CATALOGUE.values() if kind in role]
        present = _store(parts[0]) if parts else None
        if present is not None and present != origin:
            yield f"the part {brief(kind)} is of {present} here, and was of {origin}"
