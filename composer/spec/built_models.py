"""Specs that no file of the user has: those of built models, and of the Hub.

A built model is a spec, too: the one that its folder was built from. A stored spec is whole: it leaves nothing to its source, and
holds the source's sizes as ``dimensions``. On the Hub a spec is ``hub:OWNER/NAME[@REVISION]``, or
``hub:OWNER/NAME/FILE.yaml[@REVISION]``.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from composer.errors import SpecError
from composer.spec.external_parts import first_missing, needed_part_message, read_recorded_parts
from composer.spec.places import Place, SpecNode, at, from_plain
from converters.bounded import MOST_RECORD, check_file, read_object_within, reason, within
from converters.composed import RECORD, SPEC_FILE, SPEC_KEYS
from converters.errors import ConverterError
from converters.hub import HUB, fetch_files

WHOLE = "a stored spec is whole, and extends no other file"
"""The problem with ``extends`` in a record, which would open a file that nobody has named."""
DEFAULT = "head"
"""The name in a resolved spec of the head of all layers that no rule names."""


def document_of(resolved: Mapping[str, Any]) -> dict[str, Any]:
    """Return the document of a spec that resolves to the same on the same source. resolved: as its JSON is.

    A spec with its own trunk has no ``dimensions``: its trunk has all sizes.
    """
    heads = dict(resolved["heads"])
    rules: dict[str, tuple[Any, list[int]]] = {}
    for number, layer in enumerate(resolved["layers"]):
        groups = [{"head": group["head"], "heads": group.get("numbers") or group["heads"]} for group in layer]
        use = groups[0]["head"] if len(groups) == 1 else groups
        rules.setdefault(repr(use), (use, []))[1].append(number)
    layers = [{"at": numbers if len(numbers) > 1 else numbers[0], "use": use} for use, numbers in rules.values() if use != DEFAULT]
    document: dict[str, Any] = {"compose": resolved["compose"], "name": resolved["name"]}
    document |= {key: resolved[key] for key in ("paper", "direction") if resolved.get(key) is not None}
    if resolved.get("trunk") is None:
        document["dimensions"] = resolved["dimensions"]
    else:
        document["trunk"] = resolved["trunk"]
    if DEFAULT in heads:
        document["head"] = heads.pop(DEFAULT)
    if heads:
        document["heads"] = heads
    if layers:
        document["layers"] = layers
    if resolved.get("recipe") is not None:
        document["recipe"] = resolved["recipe"]
    return document


CONFIG = "config.json"


def is_built(path: Path | str) -> bool:
    """Whether a path is the folder of a built model."""
    folder = Path(path)
    if not os.path.isdir(folder):
        return False
    return os.path.lexists(folder / RECORD) or read_object_within(folder, CONFIG).get(SPEC_KEYS[0]) is not None


def read_built(folder: Path, shown: str) -> SpecNode:
    """Return the spec that a folder's model was built from, or, where it was not kept, the resolved document. Raises SpecError.

    shown: how messages name the folder.
    """
    file = RECORD if os.path.lexists(folder / RECORD) else CONFIG
    place = Place(os.path.join(shown, file))
    try:
        check_file(within(folder, file))
    except OSError as error:
        raise SpecError(at(place, (), f"cannot be read: {reason(error)}")) from None
    stored = read_recorded_parts(folder)
    if (kind := first_missing(stored)) is not None:
        raise SpecError(needed_part_message(shown, kind, stored))
    document = read_object_within(folder, RECORD, MOST_RECORD).get("spec") if file == RECORD else _read_resolved_document(folder)
    if not isinstance(document, Mapping):
        raise SpecError(at(place, (), "damaged, or of another version: it does not describe the model's heads"))
    node = from_plain(document, place=place)
    if (extends := node.child("extends")) is not None:
        raise SpecError(at(extends.start, ("extends",), WHOLE))
    return node


def _read_resolved_document(folder: Path) -> dict[str, Any] | None:
    document = read_object_within(folder, CONFIG).get(SPEC_KEYS[0])
    try:
        return None if document is None else document_of(document)
    except (AttributeError, KeyError, TypeError, ValueError):  # no build wrote this config
        return None


FORM = f"{HUB}OWNER/NAME[@REVISION] or {HUB}OWNER/NAME/FILE.yaml[@REVISION]"
NAMED = re.compile(rf"{HUB}(?P<repo>[\w.-]+/[\w.-]+)(?:/(?P<file>[^@:]+\.ya?ml))?(?:@(?P<revision>[^:]+))?")


def spec_on_hub(reference: str) -> Path | None:
    """Fetch a spec, or the spec of a built model, from the Hub. Return its file, or the folder of the model; None for a
    name of another form, such as a path.

    A repository with spec.yaml and with a model, such as an export, is read as its spec.yaml. Raises SpecError.
    """
    match = NAMED.fullmatch(reference)
    if match is None:
        return None
    file = match["file"]
    try:
        folder = fetch_files(match["repo"], match["revision"], (SPEC_FILE, RECORD, CONFIG) if file is None else (file,))
    except ConverterError as error:
        raise SpecError(str(error)) from error
    path = folder / (file or SPEC_FILE)
    if path.is_file():
        return path
    if file is None and is_built(folder):
        return folder
    missing = file or f"{SPEC_FILE}, and no built model"
    raise SpecError(f"{reference} has no {missing}; expected a spec that `compose push` wrote, or the name of a file: {FORM}")


def is_spec_on_hub(reference: str) -> bool:
    """Whether a name on the Hub is that of a spec and not of a model. Raises SpecError if it cannot be read."""
    match = NAMED.fullmatch(reference)
    if match is None or match["file"] is not None:
        return match is not None
    try:
        folder = fetch_files(match["repo"], match["revision"], (SPEC_FILE, CONFIG))
    except ConverterError as error:
        raise SpecError(str(error)) from error
    return (folder / SPEC_FILE).is_file() and not (folder / CONFIG).is_file()
