"""A kernel for tests."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def place(row, column, SIDE: tl.constexpr):
    return row[:, None] * SIDE + column[None, :]


@triton.autotune([triton.Config({}, num_warps=4), triton.Config({}, num_warps=8)], key=[])
@triton.jit
def squared(x, y, SIDE: tl.constexpr):
    """Compute y = x² for a matrix of SIDE rows and columns, column by column."""
    entry = tl.arange(0, SIDE)
    matrix = tl.load(x + place(entry, entry, SIDE))
    total = tl.zeros((SIDE, SIDE), dtype=tl.float32)
    for column in range(SIDE):
        chosen = (entry == column.to(tl.int32)).to(tl.float32)
        total += tl.dot(matrix, matrix) * chosen[None, :]
    tl.store(y + place(entry, entry, SIDE), total)
