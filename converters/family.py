"""A family of checkpoints: a table of tensor names, the names that are passed over, and a function that reads its config.

A row of the table maps a family's pattern to the canonical one, and is read in both directions. In a pattern ``{i}`` matches a
layer's number and ``{rest}`` everything that follows; both sides of a row have the same places.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, cached_property

from converters.trunk import Sizes

_NUMBER = re.compile(r"(?<![0-9])(?:0|[1-9][0-9]{0,8})(?![0-9])")
_PLACES = {"i": r"(?P<i>0|[1-9][0-9]{0,8})", "rest": r"(?P<rest>.+)"}


class NameTable:
    """``canonical`` translates a family's name, ``original`` translates back; None where no row fits."""

    def __init__(self, rows: Mapping[str, str]) -> None:
        self.rows = dict(rows)
        self._inverse = {canonical: stored_name for stored_name, canonical in self.rows.items()}

    def canonical(self, name: str) -> str | None:
        return _translate(name, self.rows)

    def original(self, name: str) -> str | None:
        return _translate(name, self._inverse)


def matches(pattern: str, name: str) -> bool:
    return _compile(pattern).fullmatch(name) is not None


@cache
def _compile(pattern: str) -> re.Pattern[str]:
    return re.compile("".join(_PLACES[part] if at % 2 else re.escape(part) for at, part in enumerate(_split(pattern))))


def _split(pattern: str) -> list[str]:
    """Split into alternating literal text and place names: ``a.{i}.b`` is ``["a.", "i", ".b"]``."""
    return re.split(r"\{(\w+)\}", pattern)


def _translate(name: str, rows: Mapping[str, str]) -> str | None:
    """Most names are looked up, with each of their numbers as the layer's: this is fast for checkpoints with many names."""
    if name in rows:
        return rows[name] if "{" not in name else None
    for number in _NUMBER.finditer(name):
        if target := rows.get(f"{name[: number.start()]}{{i}}{name[number.end() :]}"):
            return target.format(i=number[0])
    for pattern in (pattern for pattern in rows if "{rest}" in pattern):
        if match := _compile(pattern).fullmatch(name):
            return rows[pattern].format(**match.groupdict())
    return None


Config = Mapping[str, object]
"""``config.json`` as it is."""


@dataclass(frozen=True, kw_only=True)
class Family:
    """One family, identified by its ``model_type``.

    names: the family's patterns to canonical ones, with ``{i}`` for the layer. passed_over: patterns of
    tensors without information, each with the reason; loaders ignore them as well, so a file with one need not be rewritten.
    read_config: ``(config, notes)`` to a ``Trunk``, or to the ``Sizes`` of a host; it appends a note for each key that is not used.
    """

    model_type: str
    title: str
    names: Mapping[str, str]
    passed_over: Mapping[str, str]
    read_config: Callable[[Config, list[str]], Sizes]

    @cached_property
    def table(self) -> NameTable:
        return NameTable(self.names)

    def reason_to_pass_over(self, name: str) -> str | None:
        """Return why a tensor of this name is passed over; None where it is not."""
        return next((reason for pattern, reason in self.passed_over.items() if matches(pattern, name)), None)
