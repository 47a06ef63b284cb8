"""Latents over whole documents: for each latent the mean of the values by a softmax over the tokens, and each token's mixture of
these means. Documents of any number and length are concatenated, and the number of launches does not depend on theirs.

    shares M H L: p(l|t)    logits M H L: those of p(s|l), -inf where there is no token    value M K D    mean documents H L D

M tokens are processed in stretches of one document: ``begins``, ``ends`` and ``document`` of each (``blocks.stretches``). With p =
p(s|l), m a mean and ṁ its gradient, a logit's gradient is p (v·ṁ - ṁ·m), and a value's Σ p ṁ.
"""
# pyright: basic, reportArgumentType=false, reportIndexIssue=false
# pyright: reportCallIssue=false, reportOperatorIssue=false, reportGeneralTypeIssues=false

from __future__ import annotations

import math
from typing import Any

import torch
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from blocks.fused.tiles import parts, products_of, put, tile, tune, width
from blocks.legend import Float
from blocks.stretches import Stretches

LOG2_E = tl.constexpr(1.4426950408889634)


@tune((4, 2), (8, 2), key=["H", "K", "L", "D"])
def sum_up(
    logits, value, begins, ends, summed, total, largest,
    H: tl.constexpr, K: tl.constexpr, L: tl.constexpr, D: tl.constexpr,
    BLOCK: tl.constexpr, LB: tl.constexpr, DB: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Compute, for a stretch, a head and a tile of latents, the sum of values weighted by exp(logit - largest logit), and the
    sum of these weights."""
    place, h = tl.program_id(0).to(tl.int64), tl.program_id(1)
    latent, column = tl.program_id(2) * LB + tl.arange(0, LB), tl.arange(0, DB)
    latents, columns = latent < L, column < D
    top, weight = tl.full((LB,), float("-inf"), tl.float32), tl.zeros((LB,), tl.float32)
    numerator = tl.zeros((LB, DB), tl.float32)
    end = tl.load(ends + place)
    for low in range(tl.load(begins + place), end, BLOCK):
        token = (low + tl.arange(0, BLOCK)).to(tl.int64)
        here = token < end
        entry = tl.load(
            logits + ((token * H + h) * L)[None, :] + latent[:, None], mask=latents[:, None] & here[None, :], other=float("-inf")
        )
        higher = tl.maximum(top, tl.max(entry, 1))
        finite = tl.where(higher == float("-inf"), 0.0, higher)
        weights, left = tl.exp2((entry - finite[:, None]) * LOG2_E), tl.exp2((top - finite) * LOG2_E)
        weight = weight * left + tl.sum(weights, 1)
        values = tile(value, (token * K + h // (H // K)) * D, column, here, columns)
        numerator = tl.dot(weights.to(value.dtype.element_ty), values, numerator * left[:, None], input_precision=PRECISION)
        top = higher
    row = (place * H + h) * L + latent
    put(summed, row * D, column, numerator, latents, columns)
    tl.store(total + row, weight, mask=latents)
    tl.store(largest + row, top, mask=latents)


@tune((4, 2), (8, 2), key=["H", "L", "D"])
def compute_output(
    shares, mean, begins, ends, document, output,
    H: tl.constexpr, L: tl.constexpr, D: tl.constexpr,
    BLOCK: tl.constexpr, LB: tl.constexpr, DB: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Compute the outputs of a stretch and a head: each token's mixture of its document's means."""
    place, h = tl.program_id(0).to(tl.int64), tl.program_id(1)
    column, end = tl.arange(0, DB), tl.load(ends + place)
    matrix = (tl.load(document + place).to(tl.int64) * H + h) * L
    for low in range(tl.load(begins + place), end, BLOCK):
        token = (low + tl.arange(0, BLOCK)).to(tl.int64)
        here, row = token < end, token * H + h
        total = tl.zeros((BLOCK, DB), tl.float32)
        for at in range(0, L, LB):
            latent = at + tl.arange(0, LB)
            weights = tile(shares, row * L, latent, here, latent < L).to(output.dtype.element_ty)
            means = tile(mean, (matrix + latent) * D, column, latent < L, column < D).to(output.dtype.element_ty)
            total = tl.dot(weights, means, total, input_precision=PRECISION)
        put(output, row * D, column, total, here, column < D)


@tune((4, 2), (8, 2), key=["H", "L", "D"])
def of_means(
    shares, mean, begins, ends, document, upstream, share_gradient, mean_gradient,
    H: tl.constexpr, L: tl.constexpr, D: tl.constexpr,
    BLOCK: tl.constexpr, LB: tl.constexpr, DB: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Compute, for a stretch, a head and a tile of latents, the gradient of the shares, and the stretch's part of the gradient
    of the means."""
    place, h = tl.program_id(0).to(tl.int64), tl.program_id(1)
    latent, column = tl.program_id(2) * LB + tl.arange(0, LB), tl.arange(0, DB)
    latents, columns, end = latent < L, column < D, tl.load(ends + place)
    matrix = (tl.load(document + place).to(tl.int64) * H + h) * L + latent
    means, gradient = tile(mean, matrix * D, column, latents, columns).to(upstream.dtype.element_ty), tl.zeros((LB, DB), tl.float32)
    for low in range(tl.load(begins + place), end, BLOCK):
        token = (low + tl.arange(0, BLOCK)).to(tl.int64)
        here, row = token < end, token * H + h
        arrived = tile(upstream, row * D, column, here, columns)
        of_shares = tl.dot(arrived, tl.trans(means), input_precision=PRECISION)
        put(share_gradient, row * L, latent, of_shares, here, latents)
        weights = tile(shares, row * L, latent, here, latents).to(upstream.dtype.element_ty)
        gradient = tl.dot(tl.trans(weights), arrived, gradient, input_precision=PRECISION)
    put(mean_gradient, ((place * H + h) * L + latent) * D, column, gradient, latents, columns)


@tune((4, 2), (8, 2), key=["H", "K", "L", "D"])
def of_tokens(
    logits, value, mass, of_mean, even, begins, ends, document, logit_gradient, value_gradient,
    H: tl.constexpr, K: tl.constexpr, L: tl.constexpr, D: tl.constexpr,
    BLOCK: tl.constexpr, LB: tl.constexpr, DB: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Compute, for a stretch and a key head, the gradients of the logits of its query heads and of its values. mass: the
    logarithm of the sum of exponentials, +inf if there is none. of_mean: ṁ. even: ṁ·m."""
    place, k = tl.program_id(0).to(tl.int64), tl.program_id(1)
    column, end = tl.arange(0, DB), tl.load(ends + place)
    columns, belongs = column < D, tl.load(document + place).to(tl.int64)
    for low in range(tl.load(begins + place), end, BLOCK):
        token = (low + tl.arange(0, BLOCK)).to(tl.int64)
        here = token < end
        values, gradient = tile(value, (token * K + k) * D, column, here, columns), tl.zeros((BLOCK, DB), tl.float32)
        for member in range(0, H // K):
            h = k * (H // K) + member
            for at in range(0, L, LB):
                latent = at + tl.arange(0, LB)
                latents, row = latent < L, (belongs * H + h) * L + latent
                entry = tile(logits, (token * H + h) * L, latent, here, latents)
                whole = tl.load(mass + row, mask=latents, other=float("inf"))
                weights = tl.where(here[:, None], tl.exp2((entry - whole[None, :]) * LOG2_E), 0.0)
                slopes = tile(of_mean, row * D, column, latents, columns).to(values.dtype)
                gained = tl.dot(values, tl.trans(slopes), input_precision=PRECISION)
                gained -= tl.load(even + row, mask=latents, other=0.0)[None, :]
                put(logit_gradient, (token * H + h) * L, latent, weights * gained, here, latents)
                gradient = tl.dot(weights.to(values.dtype), slopes, gradient, input_precision=PRECISION)
        put(value_gradient, (token * K + k) * D, column, gradient, here, columns)


def pool(
    shares: Float[Tensor, "B T H L"], logits: Float[Tensor, "B T H L"], value: Float[Tensor, "B T K D"], stretches: Stretches
) -> Float[Tensor, "B T H D"]:
    """Return the output of each token, in the values' dtype. stretches: of the concatenated rows."""
    inputs = (tensor.contiguous() for tensor in (shares, logits, value))
    return _Pooled.apply(*inputs, stretches)  # pyright: ignore[reportReturnType]


def constants_of(dtype: torch.dtype, heads: int, key_heads: int, latents: int, dim: int) -> dict[str, Any]:
    """Return the constants of a launch for these sizes."""
    columns = width(dim)
    tiles = {"LB": width(latents, min(64, 2**13 // columns)), "DB": columns, "BLOCK": 32 if columns > 128 else 64}
    sizes = {"H": heads, "K": key_heads, "L": latents, "D": dim}
    return sizes | tiles | {"PRECISION": products_of(dtype)[1]}


class _Pooled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, shares: Tensor, logits: Tensor, value: Tensor, stretches: Stretches) -> Tensor:
        heads, latents = shares.shape[2:]
        key_heads, dim = value.shape[2:]
        constants = constants_of(value.dtype, heads, key_heads, latents, dim)
        count, tiles = stretches.document.shape[0], parts(latents, constants["LB"])
        summed = logits.new_empty(count, heads, latents, dim)
        total, largest = (logits.new_empty(count, heads, latents) for _ in range(2))
        ends = stretches.begins, stretches.ends
        sum_up[count, heads, tiles](logits, value, *ends, summed, total, largest, **constants)
        top = stretches.reduce(largest, "max")
        finite = top.masked_fill(top.isneginf(), 0.0)
        left = (largest - finite[stretches.document]).exp()
        total = stretches.reduce(total * left)
        mean = stretches.reduce(summed * left[..., None]) / total.masked_fill(total == 0, 1.0)[..., None]
        mass = (finite + total.log()).masked_fill(total == 0, math.inf)
        output = value.new_empty(*shares.shape[:3], dim)
        output_constants = {name: constant for name, constant in constants.items() if name != "K"}
        compute_output[count, heads](shares, mean, *ends, stretches.document, output, **output_constants)
        ctx.save_for_backward(shares, logits, value, mean, mass)
        ctx.launch = stretches, constants, output_constants, tiles
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        shares, logits, value, mean, mass = ctx.saved_tensors
        stretches, constants, output_constants, tiles = ctx.launch
        where = stretches.begins, stretches.ends, stretches.document
        count, heads, key_heads = where[0].shape[0], shares.shape[2], value.shape[2]
        of_shares, of_logits, of_value = (torch.empty_like(tensor) for tensor in (shares, logits, value))
        brought = mean.new_empty(count, *mean.shape[1:])
        of_means[count, heads, tiles](shares, mean, *where, upstream.contiguous(), of_shares, brought, **output_constants)
        of_mean = stretches.reduce(brought)
        even = (of_mean * mean).sum(-1)
        of_tokens[count, key_heads](logits, value, mass, of_mean, even, *where, of_logits, of_value, **constants)
        return of_shares, of_logits, of_value, None
