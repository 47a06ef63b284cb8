"""Softmax over the entries that each query reaches, with its mass, in one pass: a window beside others in a read.

    query B T H D    key, value B E K D    output B T H D    lse B T H

Query t sees the entries from ``first`` to ``past_length + t`` that are pairs, fewer than ``reach`` before its own. With p a pair's
share, ȯ and l̇ what arrives at output and lse, a logit's gradient is p (ȯ·v - ȯ·o + l̇): the mass costs no further product.
"""
# pyright: basic, reportArgumentType=false, reportIndexIssue=false
# pyright: reportCallIssue=false, reportOperatorIssue=false, reportGeneralTypeIssues=false

from __future__ import annotations

import math
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from blocks.fused.tiles import parts, products_of, put, tile, tune, width
from blocks.legend import Float, Int

LOG2_E = tl.constexpr(1.4426950408889634)
LN_2 = tl.constexpr(0.6931471805599453)
ROWS = 32
"""Entries whose gradient is computed at once. For more of them, the sums do not fit in the registers."""


@tune((4, 2), (8, 2), (4, 3), key=["H", "K", "D", "BLOCK"], numbers=["T", "E", "past_length"])
def compute_output(
    query, key, value, position, first, output, lse, T, E, past_length, scale,
    H: tl.constexpr, K: tl.constexpr, D: tl.constexpr, BLOCK: tl.constexpr, DB: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Compute the outputs of a block of queries of one head."""
    token, column = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK), tl.arange(0, DB)
    b, h = (tl.program_id(1) // H).to(tl.int64), tl.program_id(1) % H
    here, columns = token < T, column < D
    row = (b * T + token) * H + h
    asking = tile(query, row * D, column, here, columns)
    nearest = tl.load(first + b * T + token, mask=here, other=E)
    total = tl.zeros((BLOCK, DB), tl.float32)
    top, sums = tl.full((BLOCK,), float("-inf"), tl.float32), tl.zeros((BLOCK,), tl.float32)
    for low in range(tl.min(nearest, 0) // BLOCK * BLOCK, tl.minimum(past_length + (tl.program_id(0) + 1) * BLOCK, E), BLOCK):
        entry = low + tl.arange(0, BLOCK)
        pair = ((b * E + entry) * K + h // (H // K)) * D
        seen = find_visible(position, b, entry, past_length + token, nearest, E)
        logits = tl.dot(asking, tl.trans(tile(key, pair, column, entry < E, columns)), input_precision=PRECISION)
        logits = tl.where(seen, logits * (scale * LOG2_E), float("-inf"))
        higher = tl.maximum(top, tl.max(logits, 1))
        finite = tl.where(higher == float("-inf"), 0.0, higher)
        weights, correction = tl.exp2(logits - finite[:, None]), tl.exp2(top - finite)
        sums = sums * correction + tl.sum(weights, 1)
        values = tile(value, pair, column, entry < E, columns)
        total = tl.dot(weights.to(values.dtype), values, total * correction[:, None], input_precision=PRECISION)
        top = higher
    some = sums > 0
    sums = tl.where(some, sums, 1.0)
    put(output, row * D, column, total / sums[:, None], here, columns)
    tl.store(lse + row, tl.where(some, (top + tl.log2(sums)) * LN_2, float("-inf")), mask=here)


@tune((4, 2), (8, 2), (4, 3), key=["H", "K", "D", "BLOCK"], numbers=["T", "E", "past_length"])
def of_queries(
    query, key, value, position, first, upstream, mass, even, query_gradient, T, E, past_length, scale,
    H: tl.constexpr, K: tl.constexpr, D: tl.constexpr, BLOCK: tl.constexpr, DB: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Compute the gradient of a block of queries of one head. mass: the lse to base 2, +inf where nothing is visible. even: ȯ·o
    - l̇."""
    token, column = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK), tl.arange(0, DB)
    b, h = (tl.program_id(1) // H).to(tl.int64), tl.program_id(1) % H
    here, columns = token < T, column < D
    row = (b * T + token) * H + h
    asking, arrived = tile(query, row * D, column, here, columns), tile(upstream, row * D, column, here, columns)
    of_all, balance = tl.load(mass + row, mask=here, other=float("inf")), tl.load(even + row, mask=here, other=0.0)
    nearest = tl.load(first + b * T + token, mask=here, other=E)
    gradient = tl.zeros((BLOCK, DB), tl.float32)
    for low in range(tl.min(nearest, 0) // BLOCK * BLOCK, tl.minimum(past_length + (tl.program_id(0) + 1) * BLOCK, E), BLOCK):
        entry = low + tl.arange(0, BLOCK)
        pair = ((b * E + entry) * K + h // (H // K)) * D
        keys, values = tile(key, pair, column, entry < E, columns), tile(value, pair, column, entry < E, columns)
        logits = tl.dot(asking, tl.trans(keys), input_precision=PRECISION) * (scale * LOG2_E) - of_all[:, None]
        shares = tl.exp2(tl.where(find_visible(position, b, entry, past_length + token, nearest, E), logits, float("-inf")))
        shares *= tl.dot(arrived, tl.trans(values), input_precision=PRECISION) - balance[:, None]
        gradient = tl.dot(shares.to(keys.dtype), keys, gradient, input_precision=PRECISION)
    put(query_gradient, row * D, column, gradient * scale, here, columns)


@tune((4, 2), (8, 2), (8, 1), key=["H", "K", "D", "BLOCK"], numbers=["T", "E", "past_length", "reach"])
def of_pairs(
    query, key, value, position, first, upstream, mass, even, key_gradient, value_gradient, T, E, past_length, reach, scale,
    H: tl.constexpr, K: tl.constexpr, D: tl.constexpr,
    BLOCK: tl.constexpr, ROWS: tl.constexpr, DB: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Compute the gradient of a few entries of one key head, over all of its query heads. Entries are in rows, tokens in
    columns."""
    low, column = tl.program_id(0) * ROWS, tl.arange(0, DB)
    entry = low + tl.arange(0, ROWS)
    b, k = (tl.program_id(1) // K).to(tl.int64), tl.program_id(1) % K
    pair, columns = ((b * E + entry) * K + k) * D, column < D
    keys, values = tile(key, pair, column, entry < E, columns), tile(value, pair, column, entry < E, columns)
    of_key, of_value = tl.zeros((ROWS, DB), tl.float32), tl.zeros((ROWS, DB), tl.float32)
    present = tl.load(position + b * E + entry, mask=entry < E, other=-1) >= 0
    for start in range(tl.maximum(low - past_length, 0) // BLOCK * BLOCK, tl.minimum(low + ROWS - past_length + reach, T), BLOCK):
        token = start + tl.arange(0, BLOCK)
        here = token < T
        nearest = tl.load(first + b * T + token, mask=here, other=E)
        seen = present[:, None] & (entry[:, None] >= nearest[None, :]) & (entry[:, None] <= (past_length + token)[None, :])
        for member in range(0, H // K):
            row = (b * T + token) * H + k * (H // K) + member
            of_all, balance = tl.load(mass + row, mask=here, other=float("inf")), tl.load(even + row, mask=here, other=0.0)
            queries, arrived = tile(query, row * D, column, here, columns), tile(upstream, row * D, column, here, columns)
            logits = tl.dot(keys, tl.trans(queries), input_precision=PRECISION) * (scale * LOG2_E) - of_all[None, :]
            shares = tl.exp2(tl.where(seen, logits, float("-inf")))
            of_value = tl.dot(shares.to(arrived.dtype), arrived, of_value, input_precision=PRECISION)
            shares *= tl.dot(values, tl.trans(arrived), input_precision=PRECISION) - balance[None, :]
            of_key = tl.dot(shares.to(queries.dtype), queries, of_key, input_precision=PRECISION)
    put(key_gradient, pair, column, of_key * scale, entry < E, columns)
    put(value_gradient, pair, column, of_value, entry < E, columns)


@triton.jit
def find_visible(position, b, entry, query_entry, nearest, E):
    """Return which entries each query sees. Queries are in rows."""
    present = tl.load(position + b * E + entry, mask=entry < E, other=-1) >= 0
    return present[None, :] & (entry[None, :] >= nearest[:, None]) & (entry[None, :] <= query_entry[:, None])


def with_mass(
    query: Float[Tensor, "B T H D"],
    key: Float[Tensor, "B E K D"],
    value: Float[Tensor, "B E K D"],
    position: Int[Tensor, "B E"],
    first: Int[Tensor, "B T"],
    reach: int,
) -> tuple[Float[Tensor, "B T H D"], Float[Tensor, "B T H"]]:
    """Return the output, and the lse in float32: 0 and -inf where nothing is visible. position: -1 where there is no pair."""
    inputs = (states.contiguous() for states in (query, key, value, position, first.to(torch.int32)))
    return _WithMass.apply(*inputs, reach)  # pyright: ignore[reportReturnType]


def constants_of(dtype: torch.dtype, heads: int, key_heads: int, dim: int) -> dict[str, Any]:
    """Return the constants of a launch for these sizes."""
    block = 64 if dim <= 64 or (dim <= 128 and dtype.itemsize == 2) else 32
    sizes = {"H": heads, "K": key_heads, "D": dim, "BLOCK": block, "DB": width(dim)}
    return sizes | {"PRECISION": products_of(dtype)[1]}


class _WithMass(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> tuple[Tensor, Tensor]:
        *inputs, reach = arguments
        query, key = inputs[:2]
        batch, length, heads, dim = query.shape
        entries, constants = key.shape[1], constants_of(query.dtype, heads, key.shape[2], dim)
        output, lse = torch.empty_like(query), query.new_empty(query.shape[:3], dtype=torch.float32)
        sizes = length, entries, entries - length
        grid = parts(length, constants["BLOCK"]), batch * heads
        compute_output[grid](*inputs, output, lse, *sizes, 1 / math.sqrt(dim), **constants)
        ctx.save_for_backward(*inputs, output, lse)
        ctx.launch = sizes, reach, grid, constants
        return output, lse

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor, of_lse: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore
        *inputs, output, lse = ctx.saved_tensors
        sizes, reach, grid, constants = ctx.launch
        query, key, value = inputs[:3]
        upstream, scale = upstream.contiguous(), 1 / math.sqrt(query.shape[-1])
        mass = (lse / math.log(2)).masked_fill(lse.isneginf(), math.inf)
        even = ((upstream.float() * output.float()).sum(-1) - of_lse).contiguous()
        of_query, of_key, of_value = (torch.empty_like(tensor) for tensor in (query, key, value))
        of_queries[grid](*inputs, upstream, mass, even, of_query, *sizes, scale, **constants)
        entries = parts(sizes[1], ROWS), key.shape[0] * key.shape[2]
        of_pairs[entries](
            *inputs, upstream, mass, even, of_key, of_value, *sizes, reach, scale, ROWS=ROWS, **constants
        )  # fmt: skip
        return of_query, of_key, of_value, None, None, None
