"""What stands below the fields of a module's classes: each module is read once.

pydantic's ``use_attribute_docstrings`` looks for the source of each class among all modules that are imported, and takes a third of
the time that a command needs to start.
"""

from __future__ import annotations

import ast
import functools
import inspect
import linecache
import sys
from collections.abc import Iterator

Said = dict[str, str]
"""Texts by the names of fields."""


@functools.cache
def described(module: str) -> dict[str, Said]:
    """Of the classes of a module that is imported or being imported, by their qualified names; none where it has no source."""
    origin = getattr(getattr(sys.modules.get(module), "__spec__", None), "origin", None)
    source = "".join(linecache.getlines(origin)) if origin else ""
    return dict(_classes(ast.parse(source).body, ""))


def _classes(body: list[ast.stmt], inside: str) -> Iterator[tuple[str, Said]]:
    for node in body:
        if isinstance(node, ast.ClassDef):
            yield inside + node.name, dict(_fields(node))
            yield from _classes(node.body, f"{inside}{node.name}.")
        elif isinstance(node, ast.FunctionDef):
            yield from _classes(node.body, f"{inside}{node.name}.<locals>.")


def _fields(node: ast.ClassDef) -> Iterator[tuple[str, str]]:
    """A text of its own right behind an annotated name."""
    for field, text in zip(node.body, node.body[1:], strict=False):
        match field, text:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(said))):
                yield name, inspect.cleandoc(said)
