"""Long lines of Python, broken within brackets."""

from __future__ import annotations

import ast

WIDTH = 120


def wrap(line: str) -> list[str]:
    """Return a logical line, broken after commas of its longest bracket if it is longer than ``WIDTH``."""
    if len(line) <= WIDTH:
        return [line]
    indent = len(line) - len(line.lstrip())
    result = _longest_bracket(line)
    if result is None:
        return [line]
    start, end = result
    inside = line[start + 1 : end]
    inner = _parts(inside)
    space = " " * (indent + 4)
    joined = f"{space}{', '.join(inner or [inside.strip()])}"
    if inner is None:
        middle = _fill_rows(inside, space)
    elif len(joined) <= WIDTH or len(inner) == 1:
        middle = wrap(joined)
    else:
        middle = [row for part in inner for row in wrap(f"{space}{part},")]
    return [line[: start + 1], *middle, *wrap(f"{' ' * indent}{line[end:]}")]


def _longest_bracket(line: str) -> tuple[int, int] | None:
    """Return the longest outermost bracket."""
    depth, start, result, quote = 0, 0, list[tuple[int, int]](), ""
    for place, letter in enumerate(line):
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "\"'":
            quote = letter
        elif letter in "([{":
            start = place if depth == 0 else start
            depth += 1
        elif letter in ")]}":
            depth -= 1
            if depth == 0 and place > start + 1:
                result.append((start, place))
    return max(result, key=lambda pair: pair[1] - pair[0], default=None)


def _fill_rows(inside: str, space: str) -> list[str]:
    """Return annotated parameters, or the entries of a dict, as many in a row as ``WIDTH`` allows."""
    rows, depth, first = [""], 0, 0
    for place, letter in enumerate(f"{inside},"):
        depth += (letter in "([{") - (letter in ")]}")
        if letter == "," and depth == 0:
            part, first = inside[first:place].strip(), place + 1
            if rows[-1] and len(f"{space}{rows[-1]}, {part},") > WIDTH:
                rows.append("")
            rows[-1] += f", {part}" if rows[-1] else part
    return [f"{space}{row}{',' if index < len(rows) - 1 else ''}" for index, row in enumerate(rows)]


def _parts(inside: str) -> list[str] | None:
    """Return the arguments between the commas of a bracket. A comprehension is one part. None if these are not arguments."""
    try:
        node = ast.parse(f"f({inside})", mode="eval").body
    except SyntaxError:
        return None
    assert isinstance(node, ast.Call)
    parts = [*node.args, *node.keywords]
    if len(parts) == 1 and inside.rstrip().endswith(","):
        return [inside.strip()]
    if len(parts) == 1 and isinstance(parts[0], ast.GeneratorExp):
        return [inside.strip()]
    return [ast.get_source_segment(f"f({inside})", part) or "" for part in parts]
