"""A document as a tree with the place of each value, through ``extends`` and overrides."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from blocks.part import FieldPath
from composer.errors import Mistake, SpecError

Scalar = str | int | float | bool | None

DEEPEST = 64
"""Levels of nesting that a document may have; a spec needs eight."""
LONGEST = 80
"""Characters of a value that a message shows."""
SHORTEST = 3
"""The fewest characters of a word that a guess may begin with."""
MOST_COMPARED = 500
"""The most names that a word is compared with, to guess which was meant."""
GUESSES = 3
"""The most guesses that a message makes of a name."""


@dataclass(frozen=True)
class Place:
    """A file (or ``--set …``) with the line and the column, both from 1, where it has them."""

    file: str
    line: int | None = None
    column: int | None = None

    def __str__(self) -> str:
        return self.file if self.line is None else f"{self.file}:{self.line}:{self.column}"


@dataclass(frozen=True, eq=False)
class SpecNode:
    """One value of a document. place: where the value starts; key: where its key starts."""

    value: Scalar | dict[str, SpecNode] | tuple[SpecNode, ...]
    place: Place | None = None
    key: Place | None = None

    @property
    def start(self) -> Place | None:
        """The value, or its key where the value starts on a later line."""
        if self.key and self.place and (self.key.file, self.key.line) != (self.place.file, self.place.line):
            return self.key
        return self.place or self.key

    def child(self, step: str | int) -> SpecNode | None:
        """Return the value under a key or an index, or None."""
        if isinstance(self.value, dict):
            return self.value.get(step) if isinstance(step, str) else None
        if isinstance(self.value, tuple) and isinstance(step, int) and -len(self.value) <= step < len(self.value):
            return self.value[step]
        return None


class Places:
    """The place of each path of a spec. Any two are equal, so that specs are compared by their values alone."""

    def __init__(self, root: SpecNode | None = None) -> None:
        self.root = root

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Places)

    def __hash__(self) -> int:
        return hash(Places)

    def find(self, path: FieldPath) -> Place | None:
        """Return the place of ``path``, or of the nearest element around it in the document."""
        node, place = self.root, None
        for step in (None, *path):
            node = node.child(step) if node and step is not None else node
            if node is None:
                break
            place = node.start
        return place


def join_path(path: FieldPath) -> str:
    """``("head", "memory", 0, "size")`` as ``head.memory[0].size``."""
    text = ""
    for step in path:
        if isinstance(step, int):
            text += f"[{step}]"
        else:
            word = step if re.fullmatch(r"[\w-]+", step) else brief(step)
            text += f".{word}" if text else word
    return text


def at(place: Place | None, path: FieldPath, message: str) -> Mistake:
    """Return a mistake at a place."""
    dotted_path = join_path(path) or None
    return (
        Mistake(message, path=dotted_path) if place is None else Mistake(message, place.file, place.line, place.column, dotted_path)
    )


def brief(value: object) -> str:
    """Return a value as messages show it, on one line."""
    if isinstance(value, Mapping):
        return "a mapping"
    if isinstance(value, list | tuple):
        return "a list" if value else "an empty list"
    text = json.dumps(value, ensure_ascii=False, default=repr)
    text = text if text.isprintable() else json.dumps(value, default=repr)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}…"


def nearest(word: object, candidates: Iterable[str], limit: int = 1) -> str:
    """``; did you mean "size"?``, or nothing where no name is similar. limit: the most guesses."""
    text, candidates = str(word)[:LONGEST], list(dict.fromkeys(candidates))
    if len(candidates) > MOST_COMPARED:  # similar names are of similar length
        candidates = sorted(candidates, key=lambda name: abs(len(name) - len(text)))[:MOST_COMPARED]
    begun = [name for name in candidates if len(text) >= SHORTEST and name.startswith(text)]
    near = (difflib.get_close_matches(text, candidates, n=limit) or begun)[:limit]
    return f"; did you mean {' or '.join(map(brief, near))}?" if near else ""


def near_and_all(word: object, candidates: Iterable[str], command: str, noun: str = "all") -> str:
    """Return the end of a message about an unknown name: similar names, and the command that lists ``noun``."""
    return f"{nearest(word, candidates, GUESSES) or '.'} `compose {command}` lists {noun}."


def problem_of(details: Mapping[str, Any]) -> str:
    """pydantic's message on a value, in the words of this project's messages. details: one of ``ValidationError.errors()``."""
    return str(details["msg"]).removeprefix("Value error, ").replace("Input should be", "expected")


def count(node: SpecNode) -> int:
    """Return the values of a document, itself included."""
    inside = node.value.values() if isinstance(node.value, dict) else node.value if isinstance(node.value, tuple) else ()
    return 1 + sum(map(count, inside))


def plain(node: SpecNode) -> Any:
    """Return the document without its places: mappings, tuples and scalars."""
    if isinstance(node.value, dict):
        return {key: plain(value) for key, value in node.value.items()}
    if isinstance(node.value, tuple):
        return tuple(plain(value) for value in node.value)
    return node.value


def from_plain(data: object, path: FieldPath = (), place: Place | None = None) -> SpecNode:
    """Convert a document from Python. place: the file of all its values. Raises SpecError for values that YAML cannot hold."""
    if len(path) > DEEPEST:
        raise SpecError(at(place, path[:4], f"nested deeper than {DEEPEST} levels"))
    if isinstance(data, Mapping):
        for key in data:
            if not isinstance(key, str):
                raise SpecError(at(place, path, f"a key must be text, got {brief(key)}"))
        return SpecNode({key: from_plain(value, (*path, key), place) for key, value in data.items()}, place)
    if isinstance(data, list | tuple):
        return SpecNode(tuple(from_plain(value, (*path, index), place) for index, value in enumerate(data)), place)
    if data is None or isinstance(data, str | bool | int | float):
        return SpecNode(data, place)
    raise SpecError(at(place, path, f"expected a mapping, a list, text, a number, true, false or null, got {brief(data)}"))
