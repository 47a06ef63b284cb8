"""A causal filter of each coordinate over tokens, and Hedgehog's map of the result, in one launch:

    y_t = Σ_δ w_δ ⊙ x_{t-δ},  φ(y) = softmax(u) ‖ softmax(-u) of u = yW (+ y) (+ b)

    x B T N D    earlier B P N D, P = taps - 1    filters w D R    start B T    weight O D C    bias O C
    y B T M D, M = max(N, w)    features B T H 2C (or C, one side), H = max(M, O)

Entry e of a row is the e-th of ``earlier`` and x, so token t is entry t + P. start: the first entry of each token's document; the
filter reads none before it. In the backward, the gradient of u is that of ``blocks.fused.hedgehog``. One more launch computes the
gradients of all entries and, summed over a block of them, of the filters.
"""
# pyright: basic, reportArgumentType=false, reportIndexIssue=false
# pyright: reportCallIssue=false, reportOperatorIssue=false, reportGeneralTypeIssues=false

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from blocks.fused.hedgehog import back, softmax, through_the_product
from blocks.fused.tiles import parts, put, tile, tune, width
from blocks.legend import Float, Int


@tune((4, 2), (8, 2), key=["H", "D", "C", "R", "BLOCK"], numbers=["T"])
def forth(
    x, earlier, filters, start, weight, bias, filtered, features, T, floor,
    H: tl.constexpr, M: tl.constexpr, N: tl.constexpr, OWN: tl.constexpr, FILTERS: tl.constexpr, D: tl.constexpr,
    C: tl.constexpr, R: tl.constexpr, BLOCK: tl.constexpr, DB: tl.constexpr, CB: tl.constexpr, SKIP: tl.constexpr,
    SIDES: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Compute the filtered inputs and their features, for a block of tokens of one head."""
    low, line = tl.program_id(0) * BLOCK, tl.arange(0, BLOCK)
    token, b, h = low + line, (tl.program_id(1) // H).to(tl.int64), tl.program_id(1) % H
    m = h // (H // M)
    n, inner, column, here = m // (M // N), tl.arange(0, DB), tl.arange(0, CB), token < T
    # Places are relative to the start of the block, to fit in 32 bits.
    x, earlier = x + ((b * T + low) * N + n) * D, earlier + (b * (R - 1) * N + n) * D
    filtered, features = filtered + ((b * T + low) * M + m) * D, features + ((b * T + low) * H + h) * SIDES * C
    channels = inner < D
    first = tl.zeros_like(token)
    if start is not None:
        first = tl.load(start + b * T + token, mask=here, other=0)
    total = tl.zeros((BLOCK, DB), dtype=tl.float32)
    for back_by in tl.static_range(R):
        entry = token + (R - 1 - back_by)
        seen = entries(x, earlier, entry, here & (entry >= first), inner, low, N, D, R)
        taps = tl.load(filters + (m // (M // FILTERS) * D + inner) * R + R - 1 - back_by, mask=channels, other=0.0)
        total += seen.to(tl.float32) * taps.to(tl.float32)[None, :]
    # Rounded before the product, as the stored output is.
    inputs = total.to(filtered.dtype.element_ty)
    put(filtered, line * (M * D), inner, inputs, here & (h % (H // M) == 0), channels)
    map_head = h // (H // OWN)
    matrix = tile(weight, (map_head * D + inner) * C, column, channels, column < C)
    if inputs.dtype != matrix.dtype:
        mapped = tl.dot(inputs.to(tl.float32), matrix.to(tl.float32), input_precision=PRECISION)
    else:
        mapped = tl.dot(inputs, matrix, input_precision=PRECISION)
    if SKIP:
        mapped += inputs.to(tl.float32)
    if bias is not None:
        mapped += tl.load(bias + map_head * C + column, mask=column < C, other=0.0)[None, :]
    for side in tl.static_range(SIDES):
        numbers = tl.maximum(softmax(mapped if side == 0 else -mapped, column < C), floor)
        put(features, (line * (H * SIDES) + side) * C, column, numbers, here, column < C)


@triton.jit
def entries(x, earlier, entry, seen, column, low, N: tl.constexpr, D: tl.constexpr, R: tl.constexpr):
    """Load some entries of one head, with 0 for entries that are not visible. x: from the token ``low``, the start of the
    block. All earlier entries are in the first block."""
    past: tl.constexpr = R - 1
    inputs = tile(x, (entry - past - low) * (N * D), column, seen & (entry >= past), column < D)
    if low == 0:
        inputs += tile(earlier, entry * (N * D), column, seen & (entry < past), column < D)
    return inputs


@tune((4, 2), (8, 2), key=["M", "D", "R", "BLOCK"], numbers=["T", "E", "blocks"])
def back_through_taps(
    x, earlier, filters, start, arrived, of_entries, of_filters, T, E, blocks,
    M: tl.constexpr, N: tl.constexpr, FILTERS: tl.constexpr, D: tl.constexpr, R: tl.constexpr,
    BLOCK: tl.constexpr, DB: tl.constexpr,
):  # fmt: skip
    """Compute the gradient of a block of entries, B E M D, and the block's part of the filters' gradient, blocks B M R D.
    arrived: the gradient of y, B T M D."""
    block, low = tl.program_id(0), tl.program_id(0) * BLOCK
    entry, b, m = low + tl.arange(0, BLOCK), (tl.program_id(1) // M).to(tl.int64), tl.program_id(1) % M
    inner, present = tl.arange(0, DB), entry < E
    channels = inner < D
    n = m // (M // N)
    x, earlier = x + ((b * T + low) * N + n) * D, earlier + (b * (R - 1) * N + n) * D
    arrived, of_entries = arrived + ((b * T + low) * M + m) * D, of_entries + ((b * E + low) * M + m) * D
    inputs = entries(x, earlier, entry, present, inner, low, N, D, R).to(tl.float32)
    total = tl.zeros((BLOCK, DB), dtype=tl.float32)
    for back_by in tl.static_range(R):
        token = entry - (R - 1) + back_by
        sees = present & (token >= 0) & (token < T)
        if start is not None:
            sees = sees & (tl.load(start + b * T + token, mask=sees, other=0) <= entry)
        numbers = tile(arrived, (token - low) * (M * D), inner, sees, channels).to(tl.float32)
        taps = tl.load(filters + (m // (M // FILTERS) * D + inner) * R + R - 1 - back_by, mask=channels, other=0.0)
        total += numbers * taps.to(tl.float32)[None, :]
        place = (((b * M + m) * blocks + block) * R + R - 1 - back_by) * D
        tl.store(of_filters + place + inner, tl.sum(numbers * inputs, 0), mask=channels)
    put(of_entries, (entry - low) * (M * D), inner, total, present, channels)


BLOCKS = 64, 32
"""Tokens of a block, and of a block of wider heads."""


def convolved_shares(
    x: Float[Tensor, "B T N D"],
    earlier: Float[Tensor, "B P N D"],
    filters: Float[Tensor, "w D R"],
    start: Int[Tensor, "B T"] | None,
    weight: Float[Tensor, "O D C"],
    bias: Float[Tensor, "O C"] | None,
    *,
    skip: bool,
    sides: int,
    floor: float,
) -> tuple[Float[Tensor, "B T M D"], Float[Tensor, "B T H F"]]:
    """Return the filtered inputs, in x's dtype, and their features, in float32."""
    inputs = (x.contiguous(), earlier.contiguous(), filters.contiguous(), start, weight.contiguous())
    return _ConvolvedShares.apply(*inputs, bias, skip, sides, floor)  # pyright: ignore[reportReturnType]


class _ConvolvedShares(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, earlier: Tensor, filters: Tensor, start: Tensor | None, weight: Tensor, bias: Tensor | None,
        skip: bool, sides: int, floor: float,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        batch, length, incoming, dim = x.shape
        map_heads, _, columns = weight.shape
        between = max(incoming, filters.shape[0])
        heads = max(map_heads, between)
        filtered = torch.empty(batch, length, between, dim, dtype=x.dtype, device=x.device)
        features = torch.empty(batch, length, heads, sides * columns, dtype=torch.float32, device=x.device)
        exact = torch.get_float32_matmul_precision() == "highest" and torch.float32 in (x.dtype, weight.dtype)
        block = BLOCKS[max(dim, columns) > 64]
        alike = {"H": heads, "OWN": map_heads, "D": dim, "C": columns, "BLOCK": block, "DB": width(dim), "CB": width(columns)}
        alike |= {"SKIP": skip, "SIDES": sides, "PRECISION": "ieee" if exact else "tf32"}
        taps = {"M": between, "N": incoming, "FILTERS": filters.shape[0], "R": filters.shape[2]}
        inputs = (x, earlier, filters, start)
        forth[parts(length, block), batch * heads](*inputs, weight, bias, filtered, features, length, floor, **alike, **taps)
        ctx.save_for_backward(*inputs, weight, bias, filtered)
        ctx.launch = floor, alike, taps
        return filtered, features

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, of_filtered: Tensor, upstream: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore
        x, earlier, filters, start, weight, bias, filtered = ctx.saved_tensors
        floor, alike, taps = ctx.launch
        batch, length, between, dim = filtered.shape
        arrived = torch.empty(batch, length, alike["H"], alike["C"], dtype=torch.float32, device=x.device)
        grid = parts(batch * length, alike["BLOCK"]), alike["H"]
        back[grid](filtered, weight, bias, upstream.contiguous(), arrived, batch * length, floor, N=between, **alike)
        of_y, of_weight, of_bias = through_the_product(arrived, filtered, weight, bias, skip=alike["SKIP"])
        of_y = (of_y + of_filtered.float()).contiguous()
        count = earlier.shape[1] + length
        block = alike["BLOCK"]
        blocks = parts(count, block)
        of_entries = torch.empty(batch, count, between, dim, dtype=torch.float32, device=x.device)
        of_filters = torch.empty(batch, between, blocks, taps["R"], dim, dtype=torch.float32, device=x.device)
        back_through_taps[blocks, batch * between](
            x, earlier, filters, start, of_y, of_entries, of_filters, length, count, blocks,
            D=dim, BLOCK=block, DB=alike["DB"], **taps,
        )  # fmt: skip
        of_entries = of_entries.unflatten(2, (x.shape[2], -1)).sum(3).to(x.dtype)
        of_filters = of_filters.sum((0, 2)).unflatten(0, (filters.shape[0], -1)).sum(1).mT.to(filters.dtype)
        of_earlier, of_x = of_entries[:, : earlier.shape[1]], of_entries[:, earlier.shape[1] :]
        return of_x, of_earlier, of_filters, None, of_weight, of_bias, None, None, None
