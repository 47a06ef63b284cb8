"""Triton's interpreter in place of a GPU, for tests of forms that run on Triton. Importing this module installs it: it sets
TRITON_INTERPRET=1 before Triton is imported. Kernels run block by block in NumPy, in float32: results in bfloat16 are wrong here.
The interpreter lacks three things, which this module adds:

- a driver, from which libraries read the device, and autotuners the times (all times are equal, so the first configuration is
  used);
- a loop's variable as a tensor, as in a compiled kernel; the interpreter has a number of Python;
- the functions of CUDA's mathematical library.

To be faster, the module does slow work once: the language is installed for the process, not for each call of a function; a scan
combines whole rows, not single numbers; the shape of a type and its NumPy dtype are cached; operands that need no cast are not cast
(``composer/laws/operands.py``).

``nothing_refused`` makes refusals errors, as otherwise the next form would be tested in place of one that refuses.
"""
# pyright: basic, reportIncompatibleMethodOverride=false, reportAttributeAccessIssue=false, reportArgumentType=false

from __future__ import annotations

import ast
import functools
import math
import sys
import types
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy
import torch
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.backends.driver import DriverBase
from triton.language.extra import libdevice
from triton.runtime import interpreter

from composer.laws import operands
from composer.system import notices

assert isinstance(tl.cumsum, interpreter.InterpretedFunction), "Triton was imported before TRITON_INTERPRET was set"


class ProcessorDriver(DriverBase):
    """States the processor as the device, and the same time for all kernels."""

    @classmethod
    def is_active(cls) -> bool:
        return True

    def map_python_to_cpp_type(self, ty: str) -> str:
        return ty

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cpu", 0, 32)

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cpu")

    def get_device_interface(self) -> Any:
        return torch.cpu

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int | None = None) -> int:
        return 0

    def get_benchmarker(self) -> Any:
        return lambda kernel, *, quantiles=None, **options: [1.0 for _ in quantiles or (0.5,)]

    def get_empty_cache_for_benchmark(self) -> torch.Tensor:
        return torch.empty(0)

    def clear_cache(self, cache: torch.Tensor) -> None:
        pass


class LoopsOverTensors(interpreter.ASTTransformer):
    """Begins the body of ``for i in range(…)`` with ``i = i``, which becomes a tensor like anything that is assigned."""

    def visit_For(self, node: ast.For) -> ast.AST:
        callee = node.iter.func if isinstance(node.iter, ast.Call) else None
        called = callee.id if isinstance(callee, ast.Name) else callee.attr if isinstance(callee, ast.Attribute) else None
        if called == "range" and isinstance(node.target, ast.Name):
            name = node.target.id
            node.body.insert(0, ast.Assign([ast.Name(name, ast.Store())], ast.Name(name, ast.Load())))
        return self.generic_visit(node)


def _elementwise(function: numpy.ufunc) -> Any:
    """Return a function of CUDA's library by NumPy's, in float32."""

    def apply(x: Any, _semantic: Any = None) -> Any:
        numbers = function(x.handle.data.astype(numpy.float32)).astype(numpy.float32)
        return tl.core.tensor(interpreter.TensorHandle(numbers, tl.float32), x.type)

    return apply


LIBRARY = {
    "exp2": numpy.exp2,
    "fast_expf": numpy.exp,
    "fast_log2f": numpy.log2,
    "fast_logf": numpy.log,
    "fast_tanhf": numpy.tanh,
    "log1p": numpy.log1p,
    "rsqrt": lambda numbers: 1 / numpy.sqrt(numbers),
    "tanh": numpy.tanh,
}


def _combine_row_by_row(self: interpreter.ScanOps, input: tuple[Any, ...]) -> list[Any]:
    """Scan with any function: entry by entry along its axis, and all entries across the axis at once."""
    outputs = [numpy.zeros_like(operand.handle.data) for operand in input]
    before: tuple[Any, ...] = ()
    for entry in range(input[0].handle.data.shape[self.axis]):
        here = (*[slice(None)] * self.axis, entry)
        row = tuple(self.to_tensor(operand.handle.data[here], operand.dtype) for operand in input)
        after = self.combine_fn.fn(*before, *row) if entry else row
        for out, result in zip(outputs, after if isinstance(after, tuple) else (after,), strict=True):
            out[here] = result.handle.data.reshape(out[here].shape)
        before = tuple(self.to_tensor(out[here], operand.dtype) for out, operand in zip(outputs, input, strict=True))
    return [self.to_tensor(out, operand.dtype) for out, operand in zip(outputs, input, strict=True)]


class _Stays:
    """Do nothing: the installed replacements are kept for as long as the process runs."""

    def restore(self) -> None:
        pass


def _stays(_: Any) -> _Stays:
    return _Stays()


def _of_numpy(kind: Any) -> numpy.dtype[Any]:
    element = kind.scalar
    return numpy.dtype(numpy.uint64) if element.is_ptr() else _of_element(element)


@functools.cache
def _of_element(kind: Any, original: Any = interpreter._get_np_dtype) -> numpy.dtype[Any]:
    return original(kind)


TYPES: dict[tuple[Any, ...], dict[str, Any]] = {}


def _block_type(self: tl.block_type, element_ty: Any, shape: Any, original: Any = tl.block_type.__init__) -> None:
    """Of the same numbers in the same shape, its fields are the same, too."""
    named = (element_ty.name, *[getattr(side, "value", side) for side in shape])
    if named not in TYPES:
        original(self, element_ty, shape)
        TYPES[named] = {**vars(self), "sides": _sides(self.shape)}
    vars(self).update(TYPES[named], element_ty=element_ty)


def _sides(shape: Any) -> tuple[Any, Any]:
    """Return a tensor's shape and its number of entries, as a kernel sees them."""
    return tl.tuple([tl.constexpr(side) for side in shape]), tl.constexpr(math.prod(shape))


ALONE = _sides(())
"""Of one number."""


def _tensor(self: tl.tensor, handle: Any, type: Any) -> None:
    self.handle, self.type, self.dtype = handle, type, type.scalar
    self.shape, self.numel = type.sides if type.is_block() else ALONE


def _install_language() -> None:
    """Replace the language's functions by those of the interpreter, also in modules that have imported them by name."""
    before = {name: value for name, value in vars(tl).items() if callable(value) and not isinstance(value, type)}
    interpreter._patch_lang(types.FunctionType((lambda: None).__code__, {"tl": tl, "core": tl.core}))
    replaced = {id(value): name for name, value in before.items() if getattr(tl, name) is not value}
    for module in [module for name, module in sys.modules.items() if name.startswith(("fla.", "blocks.")) and module is not None]:
        for name, value in list(vars(module).items()):
            if id(value) in replaced:
                setattr(module, name, getattr(tl, replaced[id(value)]))


triton.runtime.driver.set_active(ProcessorDriver())
_install_language()
interpreter._patch_lang = _stays
interpreter._get_np_dtype = _of_numpy
tl.block_type.__init__ = _block_type
tl.tensor.__init__ = _tensor
interpreter.ScanOps.generic_scan = _combine_row_by_row
interpreter.FunctionRewriter.ast_transformer = LoopsOverTensors()
operands.put_in_place()
for name, function in LIBRARY.items():
    setattr(libdevice, name, _elementwise(function))


@contextmanager
def nothing_refused() -> Iterator[None]:
    """Within the block, a form that refuses its inputs, or that is missing, is an error. That no form fits is none."""
    warned = set(notices._WARNED)
    notices._WARNED.clear()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", notices.FallsBack)
            warnings.filterwarnings("ignore", "backend .* is set, but no part of a head", notices.FallsBack)
            yield
    finally:
        notices._WARNED.clear()
        notices._WARNED.update(warned)
