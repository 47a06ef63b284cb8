"""Softmax attention over the pairs that each query sees, in Triton.

    query  B T H D    key, value  B S K D    entry, seen  B T n    output  B T H D    lse  B T H

One program computes one query of one head. It reads its n pairs block by block and keeps the largest logit so far, the sum of the
weights and the weighted values, both relative to that logit.
"""
# pyright: basic, reportArgumentType=false, reportIndexIssue=false, reportCallIssue=false, reportOperatorIssue=false

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 32
"""Pairs that are read together."""


@triton.jit
def attend_query(
    query, key, value, entry, seen, output, lse, T, S, N, scale,
    H: tl.constexpr, K: tl.constexpr, D: tl.constexpr, DB: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Compute one query of one head. DB: D, rounded up to a power of two."""
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    batch = row // T
    column = tl.arange(0, DB)
    inside = column < D
    place = (row * H + head) * D + column
    query_row = tl.load(query + place, mask=inside, other=0.0).to(tl.float32)
    top, mass = float("-inf"), 0.0
    total = tl.zeros((DB,), tl.float32)
    for first in range(0, N, BLOCK):
        index = first + tl.arange(0, BLOCK)
        inside_row = index < N
        number = tl.load(entry + row * N + index, mask=inside_row, other=0)
        visible = tl.load(seen + row * N + index, mask=inside_row, other=0) != 0
        pair = ((batch * S + number) * K + head // (H // K)) * D
        both = visible[:, None] & inside[None]
        keys = tl.load(key + pair[:, None] + column[None], mask=both, other=0.0).to(tl.float32)
        values = tl.load(value + pair[:, None] + column[None], mask=both, other=0.0).to(tl.float32)
        logits = tl.where(visible, tl.sum(keys * query_row[None], 1) * scale, float("-inf"))
        higher = tl.maximum(top, tl.max(logits, 0))
        finite = tl.where(higher == float("-inf"), 0.0, higher)
        weights = tl.exp(logits - finite)
        decay = tl.exp(top - finite)
        mass = mass * decay + tl.sum(weights, 0)
        total = total * decay + tl.sum(weights[:, None] * values, 0)
        top = higher
    divisor = tl.where(mass > 0, mass, 1.0)
    tl.store(output + place, total / divisor, mask=inside)
    tl.store(lse + row * H + head, tl.where(mass > 0, top + tl.log(divisor), float("-inf")))


def attend(query: Tensor, key: Tensor, value: Tensor, entry: Tensor, seen: Tensor) -> tuple[Tensor, Tensor]:
    """Return the outputs, and the logarithms of the masses. A query that sees nothing has the output 0 and the mass -inf."""
    B, T, H, D = query.shape
    S, K = key.shape[1:3]
    query, key, value, entry = (tensor.contiguous() for tensor in (query, key, value, entry))
    output, lse = torch.empty_like(query), query.new_empty(B, T, H, dtype=torch.float32)
    width = triton.next_power_of_2(D)
    numbers = (T, S, entry.shape[2], 1 / math.sqrt(D))
    attend_query[(B * T, H)](
        query, key, value, entry, seen.to(torch.int8).contiguous(), output, lse, *numbers, H=H, K=K, D=D, DB=width, BLOCK=BLOCK
    )
    return output, lse
