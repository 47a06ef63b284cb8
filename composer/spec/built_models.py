"""A built model is a spec, too: the one that its folder was built from."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from composer.errors import SpecError
from composer.spec.external_parts import first_missing, needed_part_message, read_recorded_parts
from composer.spec.locked_spec import WHOLE, lock_document
from composer.spec.places import Place, SpecNode, at, from_plain
from converters.bounded import MOST_CONFIG, MOST_RECORD, check_file, read_json, reason, within
from converters.composed import RECORD, SPEC_KEYS

CONFIG = "config.json"


def is_built(path: Path | str) -> bool:
    """Whether a path is the folder of a built model."""
    folder = Path(path)
    if not os.path.isdir(folder):
        return False
    return os.path.lexists(folder / RECORD) or _read(folder, CONFIG, MOST_CONFIG).get(SPEC_KEYS[0]) is not None


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
    document = _read(folder, RECORD, MOST_RECORD).get("spec") if file == RECORD else _read_resolved_document(folder)
    if not isinstance(document, Mapping):
        raise SpecError(at(place, (), "damaged, or of another version: it does not describe the model's heads"))
    node = from_plain(document, place=place)
    check_whole(node)
    return node


def check_whole(stored: SpecNode) -> None:
    """Raise SpecError for a spec of a lock or of a record that extends another."""
    if (extends := stored.child("extends")) is not None:
        raise SpecError(at(extends.where, ("extends",), WHOLE))


def _read_resolved_document(folder: Path) -> dict[str, Any] | None:
    document = _read(folder, CONFIG, MOST_CONFIG).get(SPEC_KEYS[0])
    try:
        return None if document is None else lock_document(document)
    except (AttributeError, KeyError, TypeError, ValueError):  # no build wrote this config
        return None


def _read(folder: Path, name: str, most: int) -> Mapping[str, Any]:
    """Return the contents of a JSON file of the folder; empty where there is none, or none that can be read."""
    try:
        content = read_json(within(folder, name), most)
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, Mapping) else {}
