"""Long lines of Python, broken within brackets."""

from __future__ import annotations

import ast

WIDTH = 120


def wrapped(line: str) -> list[str]:
    """A logical line, broken behind commas of its last long bracket where it is longer than ``WIDTH``."""
    if len(line) <= WIDTH:
        return [line]
    indent = len(line) - len(line.lstrip())
    result = _longest_bracket(line)
    if result is None:
        return [line]
    start, end = result
    inner = [part.strip() for part in _parts(line[start + 1 : end])]
    space = " " * (indent + 4)
    joined = f"{space}{', '.join(inner)}"
    if len(joined) <= WIDTH or len(inner) == 1:
        middle = wrapped(joined)
    else:
        middle = [row for part in inner for row in wrapped(f"{space}{part},")]
    return [line[: start + 1], *middle, *wrapped(f"{' ' * indent}{line[end:]}")]


def _longest_bracket(line: str) -> tuple[int, int] | None:
    """The outermost bracket with the most in it."""
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


def _parts(inside: str) -> list[str]:
    """What stands between the commas of a bracket; a comprehension stays whole."""
    try:
        node = ast.parse(f"f({inside})", mode="eval").body
    except SyntaxError:
        return [inside]
    assert isinstance(node, ast.Call)
    parts = [*node.args, *node.keywords]
    if len(parts) == 1 and inside.rstrip().endswith(","):
        return [inside]
    if len(parts) == 1 and isinstance(parts[0], ast.GeneratorExp):
        return [inside]
    return [ast.get_source_segment(f"f({inside})", part) or "" for part in parts]
