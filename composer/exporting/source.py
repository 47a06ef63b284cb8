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
    """The statement that defines a function or a class of a module."""
    assert module.__file__ is not None
    return next(
        one for one in syntax(module.__file__)[1].body if isinstance(one, ast.FunctionDef | ast.ClassDef) and one.name == name
    )
