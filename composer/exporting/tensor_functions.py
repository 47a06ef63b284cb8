"""The functions of ``blocks`` as syntax trees, and those that take tensors and plain values alone, which a file has as they are."""

from __future__ import annotations

import ast
import inspect
import linecache
import pkgutil
import re
import sys
from functools import cache
from importlib import import_module
from types import CodeType, FunctionType, ModuleType

import blocks

TYPES = frozenset({
    "Tensor", "None", "int", "float", "bool", "str", "torch", "dtype", "device", "slice", "tuple", "list", "Sequence", "Callable",
    "Any", "RingSlot", "Float", "Int", "Bool", "Shaped",
})  # fmt: skip
"""Words in the annotations of a function of tensors and plain values."""
ENTERED = frozenset({"as_dtype"})
"""Small functions that are not kept as calls."""


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


def takes_tensors_alone(function: FunctionType) -> bool:
    """Whether all parameters of a function are tensors and plain values, by their annotations."""
    if function.__code__.co_freevars or function.__code__.co_flags & inspect.CO_GENERATOR or function.__name__ in ENTERED:
        return False
    node = definition(sys.modules[function.__module__], function.__name__)
    assert isinstance(node, ast.FunctionDef)
    parameters = [*node.args.args, *node.args.kwonlyargs, *([node.args.vararg] if node.args.vararg else [])]
    annotations = ["Part" if item.annotation is None else ast.unparse(item.annotation) for item in parameters]
    plain = [re.sub(r"\[Tensor, *['\"][^'\"]*['\"]\]", "", item) for item in annotations]
    return bool(parameters) and all(set(re.findall(r"[A-Za-z_]\w*", item)) <= TYPES for item in plain)


@cache
def own_functions() -> dict[CodeType, str]:
    """Return the functions of ``blocks`` that take tensors and plain values alone, as ``module:name``, by their code."""
    result = {}
    for info in pkgutil.walk_packages(blocks.__path__, "blocks."):
        if info.name.startswith("blocks.fused") or info.name.endswith(("fla_kernels", "fla_forms", "triton_forms", "_fla")):
            continue
        module = import_module(info.name)
        for name, function in vars(module).items():
            original = inspect.unwrap(function) if callable(function) else None
            if isinstance(original, FunctionType) and original.__module__ == module.__name__ and takes_tensors_alone(original):
                result[original.__code__] = f"{module.__name__}:{name}"
    return result
