"""Writes a resolved document as a spec that leaves nothing to its source, and holds the source's sizes as ``dimensions``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

WHOLE = "a stored spec is whole, and extends no other file"
"""The problem with ``extends`` in a lock or in a record, which would open a file that nobody has named."""
DEFAULT = "head"
"""The name in a resolved spec of the head of all layers that no rule names."""


def lock_document(resolved: Mapping[str, Any]) -> dict[str, Any]:
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
