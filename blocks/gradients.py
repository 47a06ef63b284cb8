"""Filters over tokens and norms of heads with written-out gradients, which need fewer passes over memory than PyTorch's.

This module imports torch, so its users import it at their first use.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.amp import custom_bwd, custom_fwd
from torch.autograd.function import once_differentiable

from blocks.legend import Bool, Float
from blocks.tensors import accumulating

TOKENS = 64
"""Tokens that are filtered at once, so that all taps find them in the processor's cache."""


def filter_tokens(
    extended: Float[Tensor, "B E h D"], taps: Float[Tensor, "kernel w D"], seen: Bool[Tensor, "kernel B T"] | None
) -> Float[Tensor, "B T H D"]:
    """Return each token's weighted sum over itself and the entries before it. The inputs or the filters, whichever have fewer
    heads, are shared by several heads of the other. seen: which tokens see each of these entries; None: all do."""
    return _Filter.apply(extended, taps, seen)


class _Filter(torch.autograd.Function):
    @staticmethod
    @custom_fwd(device_type="cpu")
    def forward(ctx: Any, extended: Tensor, taps: Tensor, seen: Tensor | None) -> Tensor:
        (batch, entries, heads, size), (kernel, filter_heads, _) = extended.shape, taps.shape
        length, shared = entries - kernel + 1, min(heads, filter_heads)
        output = extended.new_empty(batch, length, max(heads, filter_heads), size)
        inputs, filters = extended.unflatten(2, (shared, -1)), taps.unflatten(1, (shared, -1))
        for tokens in _spans(length):
            target = output[:, tokens].unflatten(2, (shared, -1))
            for index in range(kernel):
                entering = _entering(inputs, seen, index, tokens)
                if index:
                    target.addcmul_(entering, filters[index])
                else:
                    torch.mul(entering, filters[index], out=target)
        ctx.save_for_backward(inputs, filters, seen)
        return output

    @staticmethod
    @custom_bwd(device_type="cpu")
    @once_differentiable
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, Tensor | None, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        inputs, filters, seen = ctx.saved_tensors
        kernel, shared = filters.shape[0], filters.shape[1]
        length, wide = inputs.shape[1] - kernel + 1, accumulating(filters.dtype)
        to_inputs = torch.zeros_like(inputs, dtype=wide) if ctx.needs_input_grad[0] else None
        to_filters = torch.zeros_like(filters, dtype=wide) if ctx.needs_input_grad[1] else None
        of_filters, of_inputs = ((0, 1, 3), 3) if filters.shape[2] == 1 else ((0, 1), 3)
        for tokens in _spans(length):
            d_output = slope[:, tokens].unflatten(2, (shared, -1))
            for index in range(kernel):
                if to_filters is not None:
                    products = d_output * _entering(inputs, seen, index, tokens)
                    to_filters[index] += products.sum(of_filters, dtype=wide).view(filters.shape[1:])
                if to_inputs is not None:
                    target = to_inputs[:, tokens.start + index : tokens.stop + index]
                    d_entries = d_output * filters[index]
                    if seen is not None:
                        d_entries = d_entries * seen[index, :, tokens, None, None, None]
                    target += d_entries if d_entries.shape[3] == target.shape[3] else d_entries.sum(of_inputs, keepdim=True)
        return (
            None if to_inputs is None else to_inputs.to(inputs.dtype).flatten(2, 3),
            None if to_filters is None else to_filters.to(filters.dtype).flatten(1, 2),
            None,
        )


def _spans(length: int) -> list[slice]:
    return [slice(start, min(start + TOKENS, length)) for start in range(0, length, TOKENS)]


def _entering(inputs: Tensor, seen: Tensor | None, index: int, tokens: slice) -> Tensor:
    """Return the inputs of one tap at these tokens: 0 where a token does not see the entry."""
    entering = inputs[:, tokens.start + index : tokens.stop + index]
    return entering if seen is None else entering * seen[index, :, tokens, None, None, None]


def divide_by_root(states: Float[Tensor, "*rest D"], count: int, epsilon: float) -> Float[Tensor, "*rest D"]:
    """Return x / √(Σ x² / count + epsilon), over the last dimension."""
    return _DivideByRoot.apply(states, count, epsilon)


class _DivideByRoot(torch.autograd.Function):
    @staticmethod
    @custom_fwd(device_type="cpu")
    def forward(ctx: Any, states: Tensor, count: int, epsilon: float) -> Tensor:
        scale = states.square().sum(-1, keepdim=True).div_(count).add_(epsilon).rsqrt_()
        output = states * scale
        ctx.count = count
        ctx.save_for_backward(output, scale)
        return output

    @staticmethod
    @custom_bwd(device_type="cpu")
    @once_differentiable
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor, None, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        output, scale = ctx.saved_tensors
        along = (slope * output).sum(-1, keepdim=True).div_(ctx.count)
        return torch.addcmul(slope, output, along, value=-1).mul_(scale), None, None
