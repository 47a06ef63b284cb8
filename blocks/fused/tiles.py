"""Functions that several kernels share: tiles of tensors, the dtype of products, autotuning."""
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
    """Load the numbers at the offsets row + column, 0 where the masks are false."""
    return tl.load(pointer + row[:, None] + column[None, :], mask=row_mask[:, None] & column_mask[None, :], other=0.0)


@triton.jit
def put(pointer, row, column, numbers, row_mask, column_mask):
    """Store numbers at the offsets row + column, where the masks are true."""
    mask = row_mask[:, None] & column_mask[None, :]
    tl.store(pointer + row[:, None] + column[None, :], numbers.to(pointer.dtype.element_ty), mask=mask)


def tune(*warps_and_stages: tuple[int, int], key: Sequence[str], numbers: Sequence[str] = (), restore: Sequence[str] = ()) -> Any:
    """Return a decorator that makes an autotuned kernel of a function. Warps and stages are tuned once for each combination of
    values of ``key``.

    numbers: arguments that are lengths or strides. The kernel is compiled once for all of their values: compilation takes
    seconds, and no load depends on their divisibility. restore: tensors that the kernel overwrites, which tuning restores.
    Choices are cached beside Triton's compiled kernels.
    """
    tried = [triton.Config({}, num_warps=warps, num_stages=stages) for warps, stages in warps_and_stages]

    def decorator(function: Callable[..., None]) -> Any:
        kernel = triton.jit(function, do_not_specialize=numbers)
        tune = triton.autotune(tried, key=list(key), restore_value=list(restore), prune_configs_by=PRUNED, cache_results=True)
        return tune(kernel)

    return decorator


def _worth_a_try(tried: list[Any], arguments: dict[str, Any], **constants: Any) -> list[Any]:
    """Return all configurations; for kernels with exact float32 products, only the one with the most warps, since each takes up
    to 14 seconds to compile."""
    return [max(tried, key=lambda config: config.num_warps)] if constants.get("PRECISION") == "ieee" else tried


PRUNED = {"early_config_prune": _worth_a_try}


def products_of(dtype: torch.dtype) -> tuple[torch.dtype, str]:
    """Return the dtype in which features are multiplied with values of this dtype, and the precision of float32 products.
    Features of 1e-12 would be 0 in float16."""
    exact = dtype == torch.float32 and torch.get_float32_matmul_precision() == "highest"
    return torch.bfloat16 if dtype == torch.bfloat16 else torch.float32, "ieee" if exact else "tf32"


def width(size: int, limit: int = 1 << 30) -> int:
    """Return the number of columns of a tile for ``size`` numbers, at most ``limit``: a power of 2, at least 16, the smallest
    size of a product."""
    return min(max(1 << (size - 1).bit_length(), 16), limit)


def parts(size: int, part: int) -> int:
    """Return the number of parts of size ``part`` that cover ``size``."""
    return -(-size // part)
