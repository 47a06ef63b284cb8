"""A window in blocks with its gradients written out: it needs fewer passes over the logits than PyTorch's own derivative.

One block of queries is computed after the other, for all heads together, so that its logits fit into the processor's cache. With P
the weights of a block, O = P V its output, and the gradients dO of the output, g of the lse and h of the largest logit:

    dL = P ∘ (dO Vᵀ - Σ dO ∘ O + g) + h at the largest,   dQ = dL K / √D,   dK = dLᵀ Q / √D,   dV = Pᵀ dO

This module imports torch: ``windowed`` imports it at its first use.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.amp import custom_bwd, custom_fwd
from torch.autograd.function import once_differentiable

from blocks.legend import Float
from blocks.tensors import put_rows, rows

LOG2_E = 1 / math.log(2)


def blocks(
    query: Float[Tensor, "B T H D"],
    key: Float[Tensor, "B E K D"],
    value: Float[Tensor, "B E K V"],
    bias: Float[Tensor, "#B #n c S"],
    before: int,
) -> tuple[Float[Tensor, "B T H V"], Float[Tensor, "B T H"], Float[Tensor, "B T H"]]:
    """Outputs, log-sum-exps and largest logits of queries in blocks of c. A block sees ``before`` entries, then its own: S in all.

    bias: added to the logits, 0 or -inf.
    """
    return _Blocks.apply(query, key, value, bias, before)


class _Blocks(torch.autograd.Function):
    @staticmethod
    @custom_fwd(device_type="cpu")
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, bias: Tensor, before: int) -> tuple[Tensor, Tensor, Tensor]:
        output = query.new_empty(*query.shape[:3], value.shape[-1])
        lse, largest = (query.new_empty(query.shape[:3]) for _ in range(2))
        weights, masses, keys = [], [], key.shape[2]
        scale = LOG2_E / math.sqrt(query.shape[-1])
        for index, (tokens, entries) in enumerate(_places(query, bias, before)):
            queries = rows(query, tokens, keys) * scale
            logits = queries @ rows(key, entries, keys).mT
            of_heads = logits.view(query.shape[0], -1, tokens.stop - tokens.start, entries.stop - entries.start)
            of_heads.add_(bias[:, min(index, bias.shape[1] - 1), None, : of_heads.shape[2], : of_heads.shape[3]])
            top = logits.amax(-1, keepdim=True)
            empty = top.isneginf()
            # On a CPU, powers of 2 are as fast for -inf as for any number; powers of e are not.
            raw = logits.sub_(top.masked_fill(empty, 0.0)).exp2_()
            mass = raw.sum(-1, keepdim=True).masked_fill_(empty, 1.0)
            put_rows(output, tokens, (raw @ rows(value, entries, keys)).div_(mass))
            # Where nothing is visible, the largest logit is -inf, and so is the sum of it and the logarithm of 1.
            put_rows(lse[..., None], tokens, (mass.log2() + top).mul_(1 / LOG2_E))
            put_rows(largest[..., None], tokens, top / LOG2_E)
            weights.append(raw)
            masses.append(mass)
        ctx.before, ctx.count = before, len(weights)
        ctx.save_for_backward(query, key, value, bias, output, *weights, *masses)
        ctx.set_materialize_grads(False)
        return output, lse, largest

    @staticmethod
    @custom_bwd(device_type="cpu")
    @once_differentiable
    def backward(ctx: Any, to_output: Tensor | None, to_lse: Tensor | None, to_largest: Tensor | None) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        query, key, value, bias, output, *others = ctx.saved_tensors
        keys, scale = key.shape[2], 1 / math.sqrt(query.shape[-1])
        to_query = torch.empty_like(query) if ctx.needs_input_grad[0] else None
        to_key, to_value = (
            torch.zeros_like(states, memory_format=torch.contiguous_format) if needed else None
            for states, needed in zip((key, value), ctx.needs_input_grad[1:3], strict=True)
        )
        for index, (tokens, entries) in enumerate(_places(query, bias, ctx.before)):
            raw, mass = others[index], others[ctx.count + index]
            d_output = None if to_output is None else rows(to_output, tokens, keys)
            if d_output is not None and to_value is not None:
                _add(to_value, entries, raw.mT @ (d_output / mass))
            if to_query is None and to_key is None:
                continue
            level = raw.new_zeros(()) if to_lse is None else rows(to_lse[..., None], tokens, keys)
            if d_output is not None:
                level = level - (d_output * rows(output, tokens, keys)).sum(-1, keepdim=True)
                slopes = (d_output @ rows(value, entries, keys).mT).add_(level).mul_(raw).div_(mass)
            else:
                slopes = raw * (level / mass)
            if to_largest is not None:
                at_top = raw == 1
                slopes += at_top * (rows(to_largest[..., None], tokens, keys) / at_top.sum(-1, keepdim=True).clamp(min=1))
            if to_query is not None:
                put_rows(to_query, tokens, (slopes @ rows(key, entries, keys)).mul_(scale))
            if to_key is not None:
                _add(to_key, entries, (slopes.mT @ rows(query, tokens, keys)).mul_(scale))
        return to_query, to_key, to_value, None, None


def _places(query: Tensor, bias: Tensor, before: int) -> list[tuple[slice, slice]]:
    """Return the tokens of each block, and the entries that it sees."""
    length, block = query.shape[1], bias.shape[2]
    ends = ((start, min(start + block, length)) for start in range(0, length, block))
    return [(slice(start, end), slice(start, end + before)) for start, end in ends]


def _add(into: Tensor, entries: slice, slopes: Tensor) -> None:
    """Add rows to B E K D."""
    into[:, entries].add_(slopes.view(into.shape[0], into.shape[2], -1, slopes.shape[-1]).transpose(1, 2))
