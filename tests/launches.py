"""The launches of Triton kernels, recorded in place of the interpreter. Nothing runs."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from triton.runtime.interpreter import InterpretedFunction

import tests.interpreter  # noqa: F401
from tests.compiling import Build

KINDS = {torch.bfloat16: "*bf16", torch.float32: "*fp32", torch.int64: "*i64", torch.int32: "*i32", torch.bool: "*i1"}


@contextmanager
def recorded() -> Iterator[dict[str, Build]]:
    """Record one build per kernel, by "MODULE:NAME": its first launch in the first configuration of its autotuner."""
    builds: dict[str, Build] = {}

    def launch(self: Any, *positional: Any, grid: Any, warmup: bool, **options: Any) -> None:
        name = f"{self.fn.__module__}:{self.fn.__name__}"
        arguments = dict(zip(self.arg_names, positional, strict=False)) | {
            key: options[key] for key in self.arg_names if key in options
        }
        signature, constants = {}, {}
        for argument, parameter in inspect.signature(self.fn).parameters.items():
            value = arguments.get(argument, parameter.default)
            if "constexpr" in str(parameter.annotation) or value is None:
                constants[argument] = value
            else:
                signature[argument] = _kind(value)
        sizes = {key: options[key] for key in ("num_warps", "num_stages") if key in options}
        builds.setdefault(name, Build(name, signature, constants, sizes))

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(InterpretedFunction, "run", launch)
        yield builds


def _kind(value: Any) -> str:
    """Return the type as Triton writes it."""
    if isinstance(value, torch.Tensor):
        return KINDS[value.dtype]
    return "i1" if isinstance(value, bool) else "fp32" if isinstance(value, float) else "i32"
