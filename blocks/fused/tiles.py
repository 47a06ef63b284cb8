"""What the kernels share: a tile of a tensor, and what tiles are multiplied in."""
# pyright: basic, reportArgumentType=false, reportIndexIssue=false
# pyright: reportCallIssue=false, reportOperatorIssue=false, reportGeneralTypeIssues=false

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import triton
import triton.language as tl


@triton.jit
def tile(pointer, row, column, row_mask, column_mask):
    """The numbers at the offsets row + column, 0 where there is none."""
    return tl.load(pointer + row[:, None] + column[None, :], mask=row_mask[:, None] & column_mask[None, :], other=0.0)


@triton.jit
def put(pointer, row, column, numbers, row_mask, column_mask):
    """Write them there."""
    mask = row_mask[:, None] & column_mask[None, :]
    tl.store(pointer + row[:, None] + column[None, :], numbers.to(pointer.dtype.element_ty), mask=mask)


def tuned(*warps_and_stages: tuple[int, int], key: Sequence[str], numbers: Sequence[str] = (), restore: Sequence[str] = ()) -> Any:
    """Make a kernel of a function, and let an autotuner choose its warps and stages, anew for other values of ``key``.

    numbers: arguments that are lengths or strides. The kernel is compiled once for all their values, since it takes seconds, and no
    load hangs on them. restore: tensors that the kernel writes over. Results are kept beside Triton's compiled kernels.
    """
    tried = [triton.Config({}, num_warps=warps, num_stages=stages) for warps, stages in warps_and_stages]

    def decorator(function: Callable[..., None]) -> Any:
        kernel = triton.jit(function, do_not_specialize=numbers)
        tune = triton.autotune(tried, key=list(key), restore_value=list(restore), prune_configs_by=PRUNED, cache_results=True)
        return tune(kernel)

    return decorator


def _worth_a_try(tried: list[Any], arguments: dict[str, Any], **constants: Any) -> list[Any]:
    """All; of kernels with exact products of float32 one, with the most warps, since each compiles for up to 14 seconds."""
    return [max(tried, key=lambda config: config.num_warps)] if constants.get("PRECISION") == "ieee" else tried


PRUNED = {"early_config_prune": _worth_a_try}


def products_of(dtype: torch.dtype) -> tuple[torch.dtype, str]:
    """What features are multiplied in beside values of this dtype, and how float32 is: 1e-12 of a feature is none in float16."""
    exact = dtype == torch.float32 and torch.get_float32_matmul_precision() == "highest"
    return torch.bfloat16 if dtype == torch.bfloat16 else torch.float32, "ieee" if exact else "tf32"


def width(size: int, most: int = 1 << 30) -> int:
    """Columns of a tile that holds so many, or a part of them: a power of 2, and at least what a product takes."""
    return min(max(1 << (size - 1).bit_length(), 16), most)


def parts(size: int, part: int) -> int:
    """How many parts of this size it takes."""
    return -(-size // part)
