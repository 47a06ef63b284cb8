"""A spec is loaded: read, put over what it extends, overridden, and checked against the closed schemas."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from composer.errors import GraphError, SpecError
from composer.spec.document import Spec
from composer.spec.inherit import find_spec, inherited, not_found, shown
from composer.spec.messages import spec_error
from composer.spec.overrides import overridden
from composer.spec.places import Node, Places, at, from_plain, plain
from composer.spec.reading import read_file

Model = TypeVar("Model", bound=BaseModel)


def load_spec(source: str | Path | Mapping[str, object], overrides: Sequence[str] = ()) -> Spec:
    """A spec from a file, a shipped spec's name, or a mapping; overrides are ``path=value``.

    Raises SpecError with every mistake of the document, each with its file, line, column and path.
    """
    document = load_document(source, overrides, Spec)
    spec = checked(document, Spec)
    spec._places = Places(document)
    return spec


def load_document(source: str | Path | Mapping[str, object], overrides: Sequence[str], model: type[BaseModel]) -> Node:
    """The whole document, with its places, before it is checked against ``model``."""
    if isinstance(source, Mapping):
        document = inherited(from_plain(source), Path(), (model,))
    else:
        path = find_spec(str(source), Path())
        if path is None:
            raise SpecError(not_found(str(source), Path()))
        document = inherited(read_file(path, shown(path)), path.parent, (model,), (path,))
    for override in overrides:
        document = overridden(document, override, (model,))
    return document


def checked(document: Node, model: type[Model]) -> Model:
    """The document as the schema. Strict: the text "64" is no number, and "yes" is not true."""
    try:
        return model.model_validate(plain(document), strict=True)
    except ValidationError as error:
        raise spec_error(error, document, model) from None


def locate(error: GraphError, spec: Spec) -> SpecError:
    """The error with file, line, column and path in front of its message, as far as the spec knows them."""
    return SpecError(at(spec.place(error.path), error.path, str(error)))
