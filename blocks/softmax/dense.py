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
    visible: Bool[Tensor, "B T S"],
) -> Partial:
    """Softmax over the visible pairs, in blocks of queries. Keys and values are not repeated for the query heads."""
    kind = accumulating(query.dtype)
    grouped = query.to(kind).unflatten(2, (key.shape[2], -1)).permute(0, 2, 1, 3, 4)
    keys, values = key.to(kind).permute(0, 2, 3, 1), value.to(kind).permute(0, 2, 1, 3)
    outputs, masses = [], []
    for start in range(0, query.shape[1], ROWS):
        rows = grouped[:, :, start : start + ROWS]
        seen = visible[:, None, start : start + ROWS, None]
        logits = (rows.flatten(2, 3) @ keys).unflatten(2, rows.shape[2:4]) / math.sqrt(query.shape[-1])
        weights, lse = masked_softmax(logits, seen)
        outputs.append((weights.flatten(2, 3) @ values).unflatten(2, rows.shape[2:4]))
        masses.append(lse)
    output, lse = torch.cat(outputs, dim=2), torch.cat(masses, dim=2)
    return Partial(output.permute(0, 2, 1, 3, 4).flatten(2, 3).to(query.dtype), lse.permute(0, 2, 1, 3).flatten(2, 3))


def masked_softmax(logits: Tensor, visible: Tensor) -> tuple[Tensor, Tensor]:
    """Weights and log-sum-exp over the last dimension; 0 and -inf where nothing is visible."""
    logits = logits.masked_fill(~visible, -math.inf)
    largest = logits.detach().amax(-1, keepdim=True)
    largest = largest.masked_fill(largest.isneginf(), 0.0)
    raw = (logits - largest).exp()
    mass = raw.sum(-1, keepdim=True)
    empty = mass == 0
    weights = raw / mass.masked_fill(empty, 1.0)
    lse = (mass.masked_fill(empty, 1.0).log() + largest).masked_fill(empty, -math.inf)
    return weights, lse.squeeze(-1)
