"""A window in blocks: each block of queries meets the pairs of its own block and of the window before it, and no others."""

from __future__ import annotations

import math

from blocks.flow import Partial, accumulating
from blocks.legend import Bool, Float, Int, Tensor, torch
from blocks.softmax.dense import masked_softmax

BLOCK = 64
"""Fewest queries in a block: a smaller one leaves the matrix products too small."""


def windowed(
    query: Float[Tensor, "B T H D"],
    key: Float[Tensor, "B E K D"],
    value: Float[Tensor, "B E K D"],
    present: Bool[Tensor, "B E"] | None,
    segment: Int[Tensor, "B E"] | None,
    size: int,
    reach: Int[Tensor, "B T"] | None = None,
    own: Int[Tensor, "B T"] | None = None,
) -> Partial:
    """Query t stands at entry W + t and sees the last ``size`` = W entries up to it, of its own document.

    present: which entries are pairs (None: all); segment: their documents (None: one); reach: how many entries before its own
    each query sees, less than W (None: all W - 1); own: the queries' documents, where they are not those of their entries.
    """
    kind, length = accumulating(query.dtype), query.shape[1]
    block = min(max(size, BLOCK), length)
    count = math.ceil(length / block)
    missing = count * block - length

    def blocks(entries: Tensor) -> Tensor:
        padded = torch.cat((entries, entries.new_zeros(entries.shape[0], missing, *entries.shape[2:])), dim=1)
        return padded.unfold(1, size + block, block)

    queries = torch.cat((query, query.new_zeros(query.shape[0], missing, *query.shape[2:])), dim=1).to(kind)
    queries = queries.unflatten(2, (key.shape[2], -1)).unflatten(1, (count, block)).permute(0, 3, 1, 4, 2, 5)
    keys = blocks(key.to(kind)).permute(0, 2, 1, 3, 4)
    values = blocks(value.to(kind)).permute(0, 2, 1, 4, 3)

    back = torch.arange(size, size + block, device=query.device)[:, None] - torch.arange(size + block, device=query.device)
    visible = ((back >= 0) & (back < size))[None, None, None, None]
    if reach is not None:
        within = torch.cat((reach, reach.new_zeros(reach.shape[0], missing)), dim=1).unflatten(1, (count, block))
        visible = visible & (back <= within[..., None])[:, None, :, None]
    if present is not None:
        visible = visible & blocks(present)[:, None, :, None, None]
    if segment is not None:
        documents = blocks(segment)
        asking = documents[..., size:]
        if own is not None:
            asking = torch.cat((own, own.new_zeros(own.shape[0], missing)), dim=1).unflatten(1, (count, block))
        visible = visible & (asking[..., :, None] == documents[..., None, :])[:, None, :, None]

    logits = (queries.flatten(3, 4) @ keys).unflatten(3, queries.shape[3:5]) / math.sqrt(query.shape[-1])
    weights, lse, largest = masked_softmax(logits, visible)
    output = (weights.flatten(3, 4) @ values).unflatten(3, queries.shape[3:5])
    output = output.permute(0, 2, 4, 1, 3, 5).flatten(3, 4).flatten(1, 2)[:, :length]
    lse, largest = (of.permute(0, 2, 4, 1, 3).flatten(3, 4).flatten(1, 2)[:, :length] for of in (lse, largest))
    return Partial(output.to(query.dtype), lse, maximum=largest)
