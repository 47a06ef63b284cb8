"""The source of the modules of ``blocks``, as syntax trees."""

from __future__ import annotations

import ast
import linecache
from functools import cache
from types import ModuleType


@cache
def syntax(path: str) -> tuple[str, ast.Module]:
    text = "".join(linecache.getlines(path))
    return text, ast.parse(text)


def definition(module: ModuleType, name: str) -> ast.stmt:
    """Return the statement that defines a function or a class of a module."""
    assert module.__file__ is not None
    return next(
        item for item in syntax(module.__file__)[1].body if isinstance(item, ast.FunctionDef | ast.ClassDef) and item.name == name
    )
