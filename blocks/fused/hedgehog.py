"""φ(x) = softmax(u) ‖ softmax(-u) of u = xW (+ x) (+ b): one product, two softmaxes, one launch; u is never written.

    x B T N D    weight O D C    bias O C    features B T H 2C (or C, one side)

Output head h maps input head h // (H // N) by the weights h // (H // O). Backwards, u is multiplied out once more, and what
arrives at the features becomes what arrives at u; the products with W and x are the library's.
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

from blocks.fused.tiles import parts, put, tile, tune, width
from blocks.legend import Float
from blocks.tensors import repeat_heads

LOG2_E = tl.constexpr(1.4426950408889634)


@tune((4, 2), (8, 2), key=["H", "D", "C", "BLOCK"], numbers=["rows"])
def forth(
    x, weight, bias, features, rows, floor,
    H: tl.constexpr, N: tl.constexpr, OWN: tl.constexpr, D: tl.constexpr, C: tl.constexpr,
    BLOCK: tl.constexpr, DB: tl.constexpr, CB: tl.constexpr, SKIP: tl.constexpr, SIDES: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Compute the features of a block of tokens of one head."""
    row, h = (tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)).to(tl.int64), tl.program_id(1)
    column = tl.arange(0, CB)
    columns, here = column < C, row < rows
    mapped = product(x, weight, bias, row, h, here, H, N, OWN, D, C, DB, CB, SKIP, PRECISION)
    for side in tl.static_range(SIDES):
        shares = tl.maximum(softmax(mapped if side == 0 else -mapped, columns), floor)
        put(features, ((row * H + h) * SIDES + side) * C, column, shares, here, columns)


@tune((4, 2), (8, 2), key=["H", "D", "C", "BLOCK"], numbers=["rows"])
def back(
    x, weight, bias, upstream, arrived, rows, floor,
    H: tl.constexpr, N: tl.constexpr, OWN: tl.constexpr, D: tl.constexpr, C: tl.constexpr,
    BLOCK: tl.constexpr, DB: tl.constexpr, CB: tl.constexpr, SKIP: tl.constexpr, SIDES: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Compute the gradient of u, B T H C. A feature at its floor has no gradient."""
    row, h = (tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)).to(tl.int64), tl.program_id(1)
    column = tl.arange(0, CB)
    columns, here = column < C, row < rows
    mapped = product(x, weight, bias, row, h, here, H, N, OWN, D, C, DB, CB, SKIP, PRECISION)
    total = tl.zeros_like(mapped)
    for side in tl.static_range(SIDES):
        shares = softmax(mapped if side == 0 else -mapped, columns)
        numbers = tile(upstream, ((row * H + h) * SIDES + side) * C, column, here, columns)
        numbers = tl.where(shares >= floor, numbers, 0.0)
        slope = shares * (numbers - tl.sum(shares * numbers, 1)[:, None])
        total += slope if side == 0 else -slope
    put(arrived, (row * H + h) * C, column, total, here, columns)


@triton.jit
def product(
    x, weight, bias, row, h, here, H: tl.constexpr, N: tl.constexpr, OWN: tl.constexpr, D: tl.constexpr, C: tl.constexpr,
    DB: tl.constexpr, CB: tl.constexpr, SKIP: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Return u. The product is in 16 bits if both factors are."""
    inner, column = tl.arange(0, DB), tl.arange(0, CB)
    map_head, place = h // (H // OWN), (row * N + h // (H // N)) * D
    inputs = tile(x, place, inner, here, inner < D)
    matrix = tile(weight, (map_head * D + inner) * C, column, inner < D, column < C)
    if inputs.dtype != matrix.dtype:
        mapped = tl.dot(inputs.to(tl.float32), matrix.to(tl.float32), input_precision=PRECISION)
    else:
        mapped = tl.dot(inputs, matrix, input_precision=PRECISION)
    if SKIP:
        mapped += tile(x, place, column, here, column < C)
    if bias is not None:
        mapped += tl.load(bias + map_head * C + column, mask=column < C, other=0.0)[None, :]
    return mapped


@triton.jit
def softmax(numbers, columns):
    """Return the softmax over the valid columns."""
    numbers = tl.where(columns[None, :], numbers * LOG2_E, float("-inf"))
    weights = tl.exp2(numbers - tl.max(numbers, 1)[:, None])
    return weights / tl.sum(weights, 1)[:, None]


def shares(
    x: Float[Tensor, "B T N D"],
    weight: Float[Tensor, "O D C"],
    bias: Float[Tensor, "O C"] | None,
    *,
    skip: bool,
    sides: int,
    floor: float,
) -> Float[Tensor, "B T H F"]:
    """Return the features, in float32. H is the larger of N and O."""
    return _Shares.apply(x.contiguous(), weight.contiguous(), bias, skip, sides, floor)  # pyright: ignore[reportReturnType]


class _Shares(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, skip: bool, sides: int, floor: float) -> Tensor:
        batch, length, incoming, dim = x.shape
        map_heads, _, columns = weight.shape
        heads = max(map_heads, incoming)
        features = torch.empty(batch, length, heads, sides * columns, dtype=torch.float32, device=x.device)
        exact = torch.get_float32_matmul_precision() == "highest" and torch.float32 in (x.dtype, weight.dtype)
        block = 64 if max(dim, columns) <= 128 else 32
        constants = {"H": heads, "N": incoming, "OWN": map_heads, "D": dim, "C": columns, "BLOCK": block, "DB": width(dim)}
        constants |= {"CB": width(columns), "SKIP": skip, "SIDES": sides, "PRECISION": "ieee" if exact else "tf32"}
        grid = parts(batch * length, block), heads
        forth[grid](x, weight, bias, features, batch * length, floor, **constants)
        ctx.save_for_backward(x, weight, bias)
        ctx.launch = grid, floor, constants
        return features

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, bias = ctx.saved_tensors
        grid, floor, constants = ctx.launch
        batch, length, heads = *x.shape[:2], constants["H"]
        arrived = torch.empty(batch, length, heads, constants["C"], dtype=torch.float32, device=x.device)
        back[grid](x, weight, bias, upstream.contiguous(), arrived, batch * length, floor, **constants)
        of_x, of_weight, of_bias = through_the_product(arrived, x, weight, bias, skip=constants["SKIP"])
        return of_x.to(x.dtype), of_weight, of_bias, None, None, None


def through_the_product(
    arrived: Float[Tensor, "B T H C"],
    x: Float[Tensor, "B T N D"],
    weight: Float[Tensor, "O D C"],
    bias: Float[Tensor, "O C"] | None,
    *,
    skip: bool,
) -> tuple[Float[Tensor, "B T N D"], Float[Tensor, "O D C"], Float[Tensor, "O C"] | None]:
    """Return the gradients of x, in float32, of the weights and of the bias, from the gradient of u."""
    batch, length, incoming, _ = x.shape
    heads, along = arrived.shape[2], arrived.flatten(0, 1).transpose(0, 1)
    inputs = repeat_heads(x, heads).to(torch.float32).flatten(0, 1).transpose(0, 1)
    of_x = along @ repeat_heads(weight, heads, dim=0).to(torch.float32).mT
    of_x = of_x + along if skip else of_x
    of_x = of_x.transpose(0, 1).reshape(batch, length, incoming, heads // incoming, -1).sum(3)
    of_weight = (inputs.mT @ along).unflatten(0, (weight.shape[0], -1)).sum(1).to(weight.dtype)
    of_bias = None if bias is None else along.sum(1).unflatten(0, (weight.shape[0], -1)).sum(1).to(bias.dtype)
    return of_x, of_weight, of_bias
