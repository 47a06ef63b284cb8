"""The definition: every query against every pair."""

from __future__ import annotations

import math

from blocks.flow import Partial, accumulating
from blocks.legend import Bool, Float, Tensor, torch

ROWS = 512
"""Queries whose logits are held at once."""


def dense(
    query: Float[Tensor, "B T H D"],
    key: Float[Tensor, "B S K D"],
    value: Float[Tensor, "B S K D"],
    visible: Bool[Tensor, "B T S"] | Bool[Tensor, "B K T S"],
) -> Partial:
    """Softmax over the visible pairs, in blocks of queries. Keys and values are not repeated for the query heads.

    visible: the same for all heads, or one a key head.
    """
    kind = accumulating(query.dtype)
    grouped = query.to(kind).unflatten(2, (key.shape[2], -1)).permute(0, 2, 1, 3, 4)
    keys, values = key.to(kind).permute(0, 2, 3, 1), value.to(kind).permute(0, 2, 1, 3)
    visible = visible if visible.dim() == 4 else visible[:, None]
    outputs, masses, maxima = [], [], []
    for start in range(0, query.shape[1], ROWS):
        rows = grouped[:, :, start : start + ROWS]
        seen = visible[:, :, start : start + ROWS, None]
        logits = (rows.flatten(2, 3) @ keys).unflatten(2, rows.shape[2:4]) / math.sqrt(query.shape[-1])
        weights, lse, largest = masked_softmax(logits, seen)
        outputs.append((weights.flatten(2, 3) @ values).unflatten(2, rows.shape[2:4]))
        masses.append(lse)
        maxima.append(largest)
    output, lse, largest = (torch.cat(of, dim=2) for of in (outputs, masses, maxima))
    output = output.permute(0, 2, 1, 3, 4).flatten(2, 3).to(query.dtype)
    lse, largest = (of.permute(0, 2, 1, 3).flatten(2, 3) for of in (lse, largest))
    return Partial(output, lse, maximum=largest)


def masked_softmax(logits: Tensor, visible: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Weights, log-sum-exp and largest logit over the last dimension; 0, -inf and -inf where nothing is visible."""
    logits = logits.masked_fill(~visible, -math.inf)
    maximum = logits.amax(-1, keepdim=True)
    largest = maximum.detach().masked_fill(maximum.isneginf(), 0.0)
    raw = (logits - largest).exp()
    mass = raw.sum(-1, keepdim=True)
    empty = mass == 0
    weights = raw / mass.masked_fill(empty, 1.0)
    lse = (mass.masked_fill(empty, 1.0).log() + largest).masked_fill(empty, -math.inf)
    return weights, lse.squeeze(-1), maximum.squeeze(-1)
