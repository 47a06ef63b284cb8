"""Finds keys and items of lists that are indented wrongly, for clearer messages than those of a YAML reader."""

from __future__ import annotations

import re
from typing import NamedTuple

_KEY = re.compile(r"""([ ]*(?:-[ ]+)*)([\w-]+|"[^"]*"|'[^']*')[ ]*:(?:[ ]+([^#\s].*)|[ ]*(?:#.*)?)$""")
_ITEM = re.compile(r"([ ]*)-(?:[ ]|$)")
_EMPTY = re.compile(r"[ ]*(#.*)?$")


class _Key(NamedTuple):
    """A line's first key. line, column: from 0. valued: whether a value follows it on the line."""

    line: int
    column: int
    name: str
    valued: bool


def find_misplaced(text: str, line: int) -> tuple[int, str] | None:
    """Return the column of the key that a line begins with, from 0, and what is wrong with it; None where nothing is. line: from
    0."""
    lines = text.split("\n")
    if line < len(lines) and (item := _ITEM.match(lines[line])) and (wrong := _item(lines, line, len(item[1]))):
        return wrong
    here = _key(lines, line)
    above = [number for number in range(min(line, len(lines)) - 1, -1, -1) if not _EMPTY.match(lines[number])]
    keys = [key for number in above if (key := _key(lines, number))]
    if here is None or not keys or keys[0].line != above[0]:
        return None
    last = keys[0]
    if here.column > last.column:
        if not last.valued:
            return None
        return here.column, (
            f'not YAML: "{here.name}" is indented deeper than "{last.name}" in line {last.line + 1}, which has its value already: '
            f"begin it in column {last.column + 1}, too"
        )
    outer = [last]
    for key in keys:
        if key.column < outer[-1].column:
            outer.append(key)
    if any(key.column == here.column for key in outer):
        return None
    columns = " or ".join(f'{key.column + 1}, as "{key.name}"' for key in outer)
    return here.column, f'not YAML: "{here.name}" is indented unlike any key around it: begin it in column {columns}'


def _item(lines: list[str], line: int, column: int) -> tuple[int, str] | None:
    """Return the column and the message for a list item that is indented like no open list."""
    before: tuple[int, int] | None = None
    for number in (number for number in range(line - 1, -1, -1) if not _EMPTY.match(lines[number])):
        key, item = _key(lines, number), _ITEM.match(lines[number])
        if key is not None and not key.valued and key.column <= column:
            break  # the item belongs to this key's list
        if item is not None:
            if len(item[1]) == column:
                return None
            before = len(item[1]), number
            if len(item[1]) < column:
                break
        elif key is not None and not key.valued and before is None:
            return column, (
                f'not YAML: this item is indented less than "{key.name}" in line {number + 1}, whose list it is in: begin its - in '
                f"column {key.column + 1}, or further to the right"
            )
    if before is None:
        return None
    direction = "less" if before[0] > column else "deeper"
    return column, (
        f"not YAML: this item is indented {direction} than the one before it, in line {before[1] + 1}: begin its - in column "
        f"{before[0] + 1}, too"
    )


def _key(lines: list[str], line: int) -> _Key | None:
    match = _KEY.match(lines[line]) if line < len(lines) else None
    return match and _Key(line, len(match[1]), match[2].strip("\"'"), bool(match[3]))
