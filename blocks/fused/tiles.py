"""Functions that several kernels share: tiles of tensors, arguments, the dtype of products, autotuning."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl

from blocks.legend import Float, Int, Tensor

# pyright: basic, reportArgumentType=false, reportIndexIssue=false
# pyright: reportCallIssue=false, reportOperatorIssue=false, reportGeneralTypeIssues=false


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


def width(size: int, most: int = 1 << 30) -> int:
    """Return the number of columns of a tile for ``size`` numbers, at most ``most``: a power of 2, at least 16, the smallest
    size of a product."""
    return min(max(1 << (size - 1).bit_length(), 16), most)


def parts(size: int, part: int) -> int:
    """Return the number of parts of size ``part`` that cover ``size``."""
    return -(-size // part)


# Arguments, beside tensors, of the kernels that compute whole heads.
#
# Nothing here imports Triton, which may not be installed: arguments are built before the kernel is imported.


@dataclass(frozen=True)
class Evictions:
    """Which entries are in the state, and which in the window: the tables of ``blocks.fused.window_and_state``.

    held: number of entries before those of the call. reach: F ≤ t + reach, where F entries are evicted by token t. entries: the
    largest number of evicted entries.
    """

    held: int
    reach: int
    entries: int
    rows: Int[Tensor, "B 4"]
    evicted: Int[Tensor, "B T"] | None = None
    start: Int[Tensor, "B E"] | None = None


@dataclass(frozen=True)
class Cache:
    """The contents of a sparse cache at the beginning of a call: keys, values, features of the keys, and positions."""

    key: Float[Tensor, "B S H D"]
    value: Float[Tensor, "B S H D"]
    features: Float[Tensor, "B S M F"]
    position: Int[Tensor, "B S H"]


@dataclass(frozen=True)
class Chunks:
    """The start and number of chunks, and the starts of documents, as in ``blocks.fused.lola``. start: None if each row is
    one document."""

    size: int
    chunk_starts: Int[Tensor, "B T"]
    rows: Int[Tensor, "B 2"]
    start: Int[Tensor, "B E"] | None


@dataclass(frozen=True)
class Scores:
    """The scores of pairs.

    keep: the kind of a score that depends on the state or on the window; errors in the window are summed in ``worth``. ``pair``
    is a score that depends on neither; ``place`` is such a score without rounding errors. length: as in
    ``blocks.fused.lola``.
    """

    keep: str
    worth: Float[Tensor, "B H n"] | None = None
    resolution: Float[Tensor, "B H n"] | None = None
    length: Float[Tensor, "B T H"] | None = None

    @property
    def error(self) -> str:
        """The kind of a score that depends on the window; empty for other scores."""
        return "" if self.keep in ("self_recall", "relative_recall", "pair", "place") else self.keep
