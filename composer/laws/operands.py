"""The treatment of operands of a sum or a product in Triton's interpreter, without steps that have no effect.
``composer.laws.interpreter`` installs it, and every result is the same, to the bit.

Most operands are two tensors of one dtype, or a tensor and a number. Triton casts and widens them before it computes. NumPy widens
as it computes, so only the shape is computed here, and a number is made a tensor once. All other operands are treated as before.
"""
# pyright: basic, reportAttributeAccessIssue=false

from __future__ import annotations

from typing import Any

import numpy
import triton.language as tl
from triton.language.semantic import TritonSemantic

BESIDE: dict[str, tuple[type, ...]] = {"fp32": (int, float), "int32": (int,), "int64": (int,), "int1": ()}
"""Dtypes of which two operands need no cast, and the numbers that get the dtype of a tensor beside them."""
STEPS = {"int32", "int64"}
"""Dtypes that are added to a pointer as they are."""
REMEMBERED = 4096
NUMBERS: dict[tuple[Any, ...], tl.tensor] = {}
AS_IT_WAS = {
    name: getattr(TritonSemantic, name)
    for name in ("binary_op_type_checking_impl", "broadcast_impl_value", "binary_op_sanitize_overflow_impl")
}
"""What is replaced."""
TYPES: dict[tuple[str, str], tuple[tl.dtype, tl.dtype]] = {}
"""What two types are widened to."""


def alike(
    self: TritonSemantic, lhs: Any, rhs: Any, *further: Any, original: Any = AS_IT_WAS["binary_op_type_checking_impl"], **flags: Any
) -> tuple[tl.tensor, tl.tensor]:
    """Both, of one dtype and of one shape. What is widened is of the new type, with its entries as they were."""
    left, right = type(lhs) is tl.tensor, type(rhs) is tl.tensor
    if left and right:
        left_type, right_type = lhs.dtype, rhs.dtype
        moved = left_type.is_ptr() and right_type.name in STEPS and further == (True, True)
        if moved or (left_type.name == right_type.name and left_type.name in BESIDE):
            return _widen(lhs, rhs)
    elif left or right:
        tensor, number = (lhs, rhs) if left else (rhs, lhs)
        if type(number) in BESIDE.get(tensor.dtype.name, ()):
            key = number, type(number), tensor.type.name, left, further, *flags.items()
            if key not in NUMBERS:
                if len(NUMBERS) >= REMEMBERED:
                    NUMBERS.clear()
                NUMBERS[key] = original(self, lhs, rhs, *further, **flags)[left]
            return (lhs, NUMBERS[key]) if left else (NUMBERS[key], rhs)
    return original(self, lhs, rhs, *further, **flags)


def as_wide(
    self: TritonSemantic, lhs: tl.tensor, rhs: tl.tensor, original: Any = AS_IT_WAS["broadcast_impl_value"]
) -> tuple[tl.tensor, tl.tensor]:
    """Both, of one shape, in full."""
    return (lhs, rhs) if _sides(lhs) == _sides(rhs) else original(self, lhs, rhs)


def ignore_overflow(self: TritonSemantic, *_: Any) -> None:
    """Whether a sum of integers overflows: Triton checks it only in kernels that are debugged."""
    assert not self.builder.options.debug


def _sides(tensor: tl.tensor) -> list[int]:
    return tensor.type.shape.values if tensor.type.is_block() else []


def _widen(lhs: tl.tensor, rhs: tl.tensor) -> tuple[tl.tensor, tl.tensor]:
    if not (lhs.type.is_block() or rhs.type.is_block()):
        return lhs, rhs
    named = lhs.type.name, rhs.type.name
    if named not in TYPES:
        shape = [*numpy.broadcast_shapes(tuple(_sides(lhs)), tuple(_sides(rhs)))]
        TYPES[named] = tl.block_type(lhs.dtype, shape), tl.block_type(rhs.dtype, shape)
    left, right = TYPES[named]
    return (
        lhs if named[0] == left.name else tl.tensor(lhs.handle, left),
        rhs if named[1] == right.name else tl.tensor(rhs.handle, right),
    )


def put_in_place() -> None:
    TritonSemantic.binary_op_type_checking_impl = alike
    TritonSemantic.broadcast_impl_value = as_wide
    TritonSemantic.binary_op_sanitize_overflow_impl = ignore_overflow
