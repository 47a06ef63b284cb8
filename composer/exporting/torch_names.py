"""How a file writes an operation of PyTorch that a recording saw: an operator, a method, an index, or a public function."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from types import ModuleType
from typing import Any

import torch

from composer.errors import ExportError

OPERATORS = {
    "add": "+", "sub": "-", "mul": "*", "div": "/", "true_divide": "/", "floor_divide": "//",
    "__floordiv__": "//", "remainder": "%", "matmul": "@", "pow": "**", "__and__": "&", "bitwise_and": "&",
    "__or__": "|", "bitwise_or": "|", "__xor__": "^",
    "eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">=", "__eq__": "==", "__ne__": "!=",
}  # fmt: skip
REVERSED = {"__rsub__": "-", "__rdiv__": "/", "__rpow__": "**", "__rfloordiv__": "//"}
SIGNS = {"neg": "-", "__invert__": "~", "bitwise_not": "~"}


def kind_of(function: Any, name: str, args: tuple[Any, ...], options: Mapping[str, Any]) -> tuple[str, str]:
    """Return the kind of a call, and its symbol or name."""
    for kind, symbols in (("index", {"__getitem__": ""}), ("store", {"__setitem__": ""}), ("sign", SIGNS), ("reverse", REVERSED)):
        if name in symbols:
            return kind, symbols[name]
    if name in OPERATORS and len(args) == 2 and not options:
        return "operator", OPERATORS[name]
    if getattr(torch.Tensor, name, None) is function or getattr(function, "__qualname__", "").startswith(
        ("TensorBase.", "Tensor.")
    ):
        return "method", name
    return "function", _public_name(function, name)


def _public_name(function: Any, name: str) -> str:
    """Return the name of a function of PyTorch, as users write it."""
    for module, prefix in (
        (torch, "torch"),
        (torch.nn.functional, "F"),
        (torch.linalg, "torch.linalg"),
        (torch.special, "torch.special"),
    ):
        public = _names_in(module)
        if function in public:
            return f"{prefix}.{public[function]}"
    raise ExportError(f"a part calls {name}, which is not a public function of PyTorch")


@cache
def _names_in(module: ModuleType) -> dict[Any, str]:
    """Return the public functions of a module of PyTorch, with their names."""
    return {result: name for name, result in vars(module).items() if not name.startswith("_") and callable(result)}


def writes_into(name: str) -> bool:
    """Whether an operation writes into its first argument."""
    return name == "__setitem__" or (name.endswith("_") and not name.endswith("__"))
