"""``extends``: a document over its parent, and a head over another one. Mappings merge, lists are replaced, null removes, a part of
another kind starts anew."""

from __future__ import annotations

import os
import shlex
from functools import cache
from pathlib import Path

from blocks.part import FieldPath
from composer.errors import SpecError
from composer.spec.built_models import FORM, is_built, spec_on_hub
from composer.spec.fields import Alternatives, parts, under
from composer.spec.places import SpecNode, at, brief, count, nearest, plain
from composer.spec.reading import MOST_BYTES, read_file
from composer.spec.shipped import shipped_specs
from composer.system.notices import inform
from converters.bounded import list_first, lost_link_message
from converters.gguf import is_gguf
from converters.hub import HUB

SEPARATOR = ":"
"""Between a sweep and one of its variants: ``ablations/lawcat-gate-rank:32``."""
MOST_FILES = MOST_HEADS = 32
"""The longest chains of files and of heads, each of which extends the next."""
MOST_VALUES = 1_000_000
"""The most values of a document's heads, as often as they are extended, and of all documents of a sweep together."""
OWN = ("compose", "name")
"""Keys that every file must set itself."""


def merge_nodes(base: SpecNode, over: SpecNode, here: Alternatives) -> SpecNode:
    """``over`` merged over ``base``. here: the schema's alternatives at this place; where they are parts, x is {kind: x}."""
    first, second = (spell_out(base), spell_out(over)) if parts(here) else (base, over)
    if not isinstance(first.value, dict) or not isinstance(second.value, dict):
        return over
    items = dict(first.value)
    before, after = items.get("kind"), second.value.get("kind")
    if before and after and before.value != after.value:
        return over
    for key, node in second.value.items():
        if key not in items:
            items[key] = node
        elif node.value is None:
            del items[key]
        else:
            items[key] = merge_nodes(items[key], node, under(here, key))
    return SpecNode(items, over.place or base.place, over.key or base.key)


def spell_out(node: SpecNode) -> SpecNode:
    """Return a bare word as its mapping."""
    if isinstance(node.value, str):
        return SpecNode({"kind": SpecNode(node.value, node.place)}, node.place, node.key)
    return node


def inherit(document: SpecNode, folder: Path, here: Alternatives, chain: tuple[Path, ...] = ()) -> SpecNode:
    """Return the document merged over everything that it extends. folder: its relative names start there. Raises SpecError."""
    extends = document.child("extends")
    fields = _without(document, ("extends",))
    if extends is None:
        return fields
    if not isinstance(extends.value, str):
        raise SpecError(at(extends.start, ("extends",), "expected a file, or the name of a shipped spec"))
    if extends.value.startswith(HUB):
        remedy = f"write it to a file beside this one, and extend that: `compose show {shlex.quote(extends.value)} > FILE.yaml`"
        raise SpecError(at(extends.start, ("extends",), f"a spec of the Hub cannot be extended: {remedy}"))
    path = find_spec(extends.value, folder)
    sweep, separator, variant = extends.value.rpartition(SEPARATOR)
    if path is None and separator and find_spec(sweep, folder) is not None:
        remedy = f"extend {brief(sweep)} with `vary: null` and the values of {brief(variant)}, or write the variant to a file first"
        command = f"`compose show {shlex.quote(sweep)} --expand -o FOLDER`"
        raise SpecError(at(extends.start, ("extends",), f"a variant of a sweep cannot be extended: {remedy}: {command}"))
    if path is None:
        through = f" (through {_arrows(chain)})" if len(chain) > 1 else ""
        raise SpecError(at(extends.start, ("extends",), not_found(extends.value, folder) + through))
    if path.resolve() in (file.resolve() for file in chain):
        raise SpecError(at(extends.start, ("extends",), f"extends itself: {_arrows((*chain, path))}"))
    if len(chain) >= MOST_FILES or sum(file.stat().st_size for file in chain) > MOST_BYTES:
        limit = f"more than {MOST_FILES} files or {MOST_BYTES:,} bytes"
        raise SpecError(at(extends.start, ("extends",), f"a chain of {limit}, which began with {short_path(chain[0])}"))
    parent = read_file(path, short_path(path))
    _check_own(parent, fields, extends)
    base = inherit(parent, path.parent, here, (*chain, path))
    return merge_nodes(_without(base, OWN), fields, here)


def heads_inherited(document: SpecNode, here: Alternatives) -> SpecNode:
    """Return the document with each of its ``heads`` merged over the head that it extends: ``head``, or another of them. Raises
    SpecError.

    This is done after the file's own ``extends`` and after overrides, so changes to a head also apply to the heads that extend it.
    """
    heads_node = document.child("heads")
    if heads_node is None or not isinstance(heads_node.value, dict):
        return document
    assert isinstance(document.value, dict)
    extending = sum(node.child("extends") is not None for node in heads_node.value.values())
    if extending * count(document) > MOST_VALUES:
        raise SpecError(
            at(heads_node.start, ("heads",), f"{extending:,} heads that extend others: more than {MOST_VALUES:,} values in all")
        )
    all_heads = {"head": document.child("head"), **heads_node.value}
    heads = {name: node for name, node in all_heads.items() if node is not None and node.value is not None}
    merged_heads = {
        name: _head(("heads", name), heads, under(under(here, "heads"), name)) for name in heads_node.value if name in heads
    }
    return SpecNode(
        {**document.value, "heads": SpecNode(heads_node.value | merged_heads, heads_node.place, heads_node.key)},
        document.place,
        document.key,
    )


def heads_extended(document: SpecNode) -> set[str]:
    """Return the heads of a document that others of its heads extend."""
    heads = document.child("heads")
    references = [node.child("extends") for node in heads.value.values()] if heads and isinstance(heads.value, dict) else []
    return {reference.value for reference in references if reference and isinstance(reference.value, str)}


def _head(path: FieldPath, heads: dict[str, SpecNode], here: Alternatives, chain: tuple[str, ...] = ()) -> SpecNode:
    name = str(path[-1])
    node, extends = heads[name], heads[name].child("extends")
    if extends is None or name == "head":  # `head` extends none, as its schema requires
        return node

    def error(message: str) -> SpecError:
        return SpecError(at(extends.start, (*path, "extends"), message))

    if not isinstance(extends.value, str) or extends.value not in heads:
        guess = nearest(extends.value, heads) or "."
        raise error(f"expected the name of a head, got {brief(plain(extends))}{guess} Heads: {list_first(heads)}")
    if extends.value in (*chain, name):
        raise error(f"extends itself: {' → '.join((*chain, name, extends.value))}")
    if len(chain) >= MOST_HEADS:
        raise error(f"a chain of more than {MOST_HEADS} heads, which began with {chain[0]}")
    base = _head(("heads", extends.value), heads, here, (*chain, name))
    return merge_nodes(base, _without(node, ("extends",)), here)


def _without(document: SpecNode, keys: tuple[str, ...]) -> SpecNode:
    assert isinstance(document.value, dict)
    return SpecNode({key: node for key, node in document.value.items() if key not in keys}, document.place, document.key)


def _check_own(parent: SpecNode, child: SpecNode, extends: SpecNode) -> None:
    """Raise SpecError if two files of a chain have different versions: defaults belong to a version."""
    for key in OWN:
        if parent.child(key) is None:
            raise SpecError(at(parent.start, (key,), "missing: every file needs its own"))
    ours, theirs = child.child("compose"), parent.child("compose")
    if ours and theirs and ours.value != theirs.value:
        message = f"{theirs.start} has compose: {brief(theirs.value)}, and this file has compose: {brief(ours.value)}"
        raise SpecError(at(extends.start, ("extends",), message))


def find_spec(reference: str, folder: Path) -> Path | None:
    """Return the path of a spec: the shipped spec of this name, else a file of this name (relative to ``folder``), else the shipped
    spec of this name before ``.yaml``, else the folder of a built model.

    So what happens to be in the folder never replaces a shipped spec: ``./lolcats`` and ``lolcats.yaml`` name files. A spec of the
    Hub is fetched first. Raises SpecError if that fails.
    """
    if reference.startswith(HUB):
        return spec_on_hub(reference)
    path = folder / reference
    if shipped := shipped_specs().get(reference):
        if os.path.lexists(path):
            _tell_shipped(reference)
        return shipped
    if os.path.exists(path) and not os.path.isdir(path) and not is_gguf(reference):
        return path
    return shipped_specs().get(reference.removesuffix(".yaml")) or (path if is_built(path) else None)


@cache
def _tell_shipped(name: str) -> None:
    """Log once which of two specs is used."""
    inform(f"{name} is the shipped spec. Write ./{name} for the file or the folder of this name.")


def own_source(reference: object) -> Path | None:
    """Return the folder of a built model that is named in place of a spec, for its sizes; None for any other, and for one with a
    trunk."""
    if not isinstance(reference, str | os.PathLike):
        return None
    path = find_spec(os.fspath(reference), Path())
    return path if path is not None and path.is_dir() and read_file(path, short_path(path)).child("trunk") is None else None


def not_found(reference: str, folder: Path) -> str:
    """Return the message that there is no such spec, with the most similar name."""
    if reference.startswith(HUB):
        return f"{brief(reference)} is no spec of the Hub; expected {FORM}"
    if lost := lost_link_message(folder / reference):
        return lost
    if is_gguf(reference):
        return f"{brief(reference)} names a GGUF file, which is a source and no spec: name a spec, and the file with --from"
    if os.path.isdir(folder / reference):
        return f"{brief(reference)} is a folder, and no built model; a spec is one YAML file, or a model that was built from one"
    shipped = list(shipped_specs())
    directory, name = os.path.split(reference)
    beside = [os.path.join(directory, file) for file in _yaml_files(folder / directory)]
    guess = nearest(reference, (*beside, *shipped), 3) or nearest(name.removesuffix(".yaml"), shipped, 3) or "."
    place = "here" if short_path(folder) == "." else f"in {short_path(folder)}"
    return f"no file {brief(reference)} {place}, and no shipped spec of that name{guess} `compose show` lists the shipped ones"


def _yaml_files(folder: Path) -> list[str]:
    try:
        return sorted(name for name in os.listdir(folder) if name.endswith(".yaml"))
    except (OSError, ValueError):  # no folder, or an impossible name
        return []


def short_path(path: Path) -> str:
    """Return a file as messages name it: relative to the working folder where it lies inside."""
    try:
        relative = os.path.relpath(path)
    except OSError:  # the working folder was removed, or may not be read
        return str(path)
    return str(path) if relative.startswith(os.pardir) else relative


def _arrows(chain: tuple[Path, ...]) -> str:
    return " → ".join(short_path(path) for path in chain)
