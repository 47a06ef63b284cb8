"""Loads a spec: it is read, merged over what it extends, overridden, and checked against the closed schemas."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from composer.errors import GraphError, SpecError
from composer.spec.document import Spec, Vary
from composer.spec.external_parts import PartReference, use_parts
from composer.spec.inherit import find_spec, heads_extended, heads_inherited, inherit, not_found, short_path
from composer.spec.layer_rules import names_in
from composer.spec.messages import spec_error
from composer.spec.overrides import Overrides, override_list, override_value
from composer.spec.places import Places, SpecNode, at, from_plain, plain
from composer.spec.reading import read_file, read_spec
from composer.spec.resolve import Dimensions, Resolved, resolve
from composer.spec.shipped import shipped_specs
from composer.spec.sweep import SEPARATOR, choose_variant, merge_errors, variants
from converters.bounded import brief

Validated = TypeVar("Validated", bound=BaseModel)
SpecLike = Spec | str | Path | Mapping[str, Any]
"""A file, the name of a shipped spec, a document as a mapping, or a loaded spec."""
OF_A_SWEEP = ("compose", "name", "vary")
"""Keys that belong to a sweep, and not to its variants."""


def load_spec(source: SpecLike, overrides: Overrides = (), *, parts: PartReference | Sequence[PartReference] = ()) -> Spec:
    """Return a spec from a file, a shipped spec's name, or a mapping; overrides are ``path=value``. ``file:variant`` is one of a
    sweep's.

    parts: Python modules or files (.py) with your own parts, which are imported. Those of installed packages need no option.

    Raises SpecError with every mistake of the document, each with its file, line, column and path.
    """
    use_parts(parts)
    if isinstance(source, Spec) and not override_list(overrides):
        return source  # unchanged, so that it keeps the places of its values
    source, variant = _split(source)
    document = load_document(source)
    if variant is None:
        return _apply_overrides(document, overrides)
    vary = _vary(document, overrides)
    document = choose_variant(document, vary, variant)
    try:
        return _apply_overrides(document, overrides)
    except SpecError as error:
        raise merge_errors([(variant, error)], vary) from None


def load_text(text: str, called: str, folder: Path) -> Spec:
    """Return a spec from its text. called: how messages name it. folder: where the names that it extends start. Raises
    SpecError."""
    return _apply_overrides(inherit(read_spec(text, called), folder, (Spec,)), ())


def variants_of(source: SpecLike, overrides: Overrides = ()) -> tuple[Vary | None, dict[str | None, Spec]]:
    """What a sweep varies, and its specs by their variants' names. For a single spec: None, and that spec under None.

    Overrides are applied to each, before it is checked. Raises SpecError.
    """
    _, variant = _split(source)
    if variant is not None or (isinstance(source, Spec) and source.vary is None):
        return None, {None: load_spec(source, overrides)}
    document = load_document(source)
    vary_node = document.child("vary")
    if vary_node is None or vary_node.value is None:
        return None, {None: _apply_overrides(document, overrides)}
    vary = _vary(document, overrides)
    return vary, {**_expand(document, vary, overrides)}


def expand(source: SpecLike, overrides: Overrides = (), *, parts: PartReference | Sequence[PartReference] = ()) -> dict[str, Spec]:
    """Return the specs of a sweep, by their variants' names; overrides are applied to each. Raises SpecError with every mistake of
    every variant, and if ``source`` is no sweep. parts: as for ``load_spec``."""
    use_parts(parts)
    document = load_document(source)
    return _expand(document, _vary(document, overrides), overrides)


def load_specs(source: str, overrides: Overrides = ()) -> dict[str, Spec]:
    """Return the spec under its source's name; those of a sweep each under ``file:variant``. Raises SpecError."""
    _, specs = variants_of(source, overrides)
    return {source if name is None else f"{source}{SEPARATOR}{name}": spec for name, spec in specs.items()}


def specs_of(specs: SpecLike | Sequence[SpecLike]) -> tuple[SpecLike, ...]:
    """Return one spec or several as a list. Another value is returned as one spec, so that reading it raises the error."""
    if isinstance(specs, Spec | str | os.PathLike | Mapping) or not isinstance(specs, Iterable):
        return (specs,)
    return tuple(specs)


def resolve_spec(spec: SpecLike, size: Dimensions | None, overrides: Overrides = ()) -> Resolved:
    """Return the complete document for a source of this size, or, for None, on the spec's own trunk.

    Raises SpecError with file, line and path.
    """
    loaded = load_spec(spec, overrides)
    try:
        return resolve(loaded, size)
    except GraphError as error:
        raise locate(error, loaded) from error


def load_document(source: SpecLike) -> SpecNode:
    """Return the whole document after ``extends``, with its places, before it is checked."""
    if isinstance(source, Spec):
        source = source.model_dump(mode="json", exclude_unset=True)
    if isinstance(source, Mapping):
        return inherit(from_plain(source), Path(), (Spec,))
    path = find_spec(str(source), Path())
    if path is None:
        raise SpecError(not_found(str(source), Path()))
    return inherit(read_file(path, short_path(path)), path.parent, (Spec,), (path,))


def names_a_spec(word: str) -> bool:
    """Whether a word is a spec's, and no folder's: a shipped one's, or a YAML file's, with the variant of a sweep or without."""
    if Path(word).expanduser().is_dir():
        return False
    names = (word, word.rpartition(SEPARATOR)[0])
    return any(name.removesuffix(".yaml") in shipped_specs() or (name.endswith(".yaml") and Path(name).is_file()) for name in names)


def _split(source: SpecLike) -> tuple[SpecLike, str | None]:
    """Return the sweep and its variant, if the source names one. A file with the whole name has precedence. Raises SpecError."""
    if not isinstance(source, Spec | Mapping | str | Path):
        raise SpecError(f"a spec is a name, a file, a mapping or a `Spec`, not {brief(source)}")
    if isinstance(source, Spec | Mapping) or find_spec(str(source), Path()) is not None:
        return source, None
    file, separator, variant = str(source).rpartition(SEPARATOR)
    return (file, variant) if separator and find_spec(file, Path()) is not None else (source, None)


def _vary(document: SpecNode, overrides: Overrides) -> Vary:
    """Return the ``vary`` of a sweep. Without overrides the rest of the document is checked, too; with them, each variant is
    instead."""
    sweep_nodes = {key: node for key in OF_A_SWEEP if (node := document.child(key)) is not None}
    sweep = SpecNode(sweep_nodes, document.place) if override_list(overrides) else heads_inherited(document, (Spec,))
    vary = validate_document(sweep, Spec).vary
    if vary is None:
        raise SpecError(at(document.start, (), "this is one spec, no sweep: it has no `vary`"))
    return vary


def _expand(document: SpecNode, vary: Vary, overrides: Overrides) -> dict[str, Spec]:
    """Return the specs by their variants' names. Raises SpecError with every mistake of every variant."""
    specs: dict[str, Spec] = {}
    problems: list[tuple[str, SpecError]] = []
    for name, variant in variants(document, vary).items():
        try:
            specs[name] = _apply_overrides(variant, overrides)
        except SpecError as error:
            problems.append((name, error))
    if problems:
        raise merge_errors(problems, vary)
    return specs


def _apply_overrides(document: SpecNode, overrides: Overrides) -> Spec:
    for override in override_list(overrides):
        document = override_value(document, override, (Spec,))
    full_document = heads_inherited(document, (Spec,))
    spec = validate_document(full_document, Spec)
    if bases := heads_extended(document) - {name for rule in spec.layers for name in names_in(rule.use)}:
        # No layer has them: they are there for the heads that extend them.
        spec = spec.model_copy(update={"heads": {name: head for name, head in spec.heads.items() if name not in bases}})
    spec._places = Places(full_document)
    return spec


def validate_document(document: SpecNode, model: type[Validated]) -> Validated:
    """Return the document as the schema. Strict: the text "64" is no number, and "yes" is not true."""
    try:
        return model.model_validate(plain(document), strict=True)
    except ValidationError as error:
        raise spec_error(error, document, model) from None


def locate(error: GraphError, spec: Spec) -> SpecError:
    """Return the error with file, line, column and path before its message, as far as the spec has them."""
    return SpecError(at(spec.place(error.path), error.path, str(error)))
