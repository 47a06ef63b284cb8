"""A window in blocks: each block of queries meets the pairs of its own block and of the window before it, and no others."""

from __future__ import annotations

import math

from blocks.flow import Partial, accumulating
from blocks.legend import Bool, Float, Int, Tensor, torch
from blocks.softmax.dense import capped, hidden, raw_weights

BLOCK = 64
"""Queries in a block: a smaller one leaves the matrix products too small, a larger one meets more pairs that it does not see."""
SPAN = 512
"""Queries whose logits are computed at once: they stay near the processor."""


def windowed(
    query: Float[Tensor, "B T H D"],
    key: Float[Tensor, "B E K D"],
    value: Float[Tensor, "B E K D"],
    present: Bool[Tensor, "B E"] | None,
    segment: Int[Tensor, "B E"] | None,
    size: int,
    reach: Int[Tensor, "B T"] | None = None,
    own: Int[Tensor, "B T"] | None = None,
    softcap: float | None = None,
) -> Partial:
    """Query t stands at entry W + t and sees the last ``size`` = W entries up to it, of its own document.

    present: which entries are pairs (None: all); segment: their documents (None: one); reach: how many entries before its own
    each query sees, less than W (None: all W - 1); own: the queries' documents, where they are not those of their entries. softcap:
    of the logits.
    """
    dtype, length = accumulating(query.dtype), query.shape[1]
    block = min(BLOCK, length)
    count = math.ceil(length / block)
    missing = count * block - length

    def blocks(entries: Tensor) -> Tensor:
        return _filled(entries, missing).unfold(1, size + block, block)

    queries = _filled(query.to(dtype) / math.sqrt(query.shape[-1]), missing)
    queries = queries.unflatten(2, (key.shape[2], -1)).unflatten(1, (count, block)).permute(0, 1, 3, 4, 2, 5)
    keys = blocks(key.to(dtype)).permute(0, 1, 2, 4, 3)
    values = blocks(value.to(dtype)).permute(0, 1, 2, 4, 3)

    back = torch.arange(size, size + block, device=query.device)[:, None] - torch.arange(size + block, device=query.device)
    visible = ((back >= 0) & (back < size)).expand(1, count, -1, -1)
    if reach is not None:
        within = _filled(reach, missing).unflatten(1, (count, block))
        visible = visible & (back <= within[..., None])
    if present is not None:
        visible = visible & blocks(present)[:, :, None]
    if segment is not None:
        documents = blocks(segment)
        asking = documents[..., size:]
        if own is not None:
            asking = _filled(own, missing).unflatten(1, (count, block))
        visible = visible & (asking[..., :, None] == documents[..., None, :])

    at_once = max(SPAN // block, 1)
    spans = zip(*(of.split(at_once, dim=1) for of in (queries, keys, values, visible)), strict=True)
    answers = zip(*(_answered(asking, near, held, seen, softcap) for asking, near, held, seen in spans), strict=True)
    output, lse, largest = (torch.cat(of, dim=1).flatten(1, 2)[:, :length].flatten(2, 3) for of in answers)
    return Partial(output.to(query.dtype), lse, maximum=largest)


def _answered(
    query: Float[Tensor, "B n K Q c D"],
    key: Float[Tensor, "B n K S D"],
    value: Float[Tensor, "B n K S D"],
    visible: Bool[Tensor, "#B n c S"],
    softcap: float | None,
) -> tuple[Float[Tensor, "B n c K Q D"], Float[Tensor, "B n c K Q"], Float[Tensor, "B n c K Q"]]:
    """n blocks of c queries, Q of them a key head: their outputs, log-sum-exps and largest logits."""
    # Copied row by row here; the product would copy the transposed keys number by number.
    logits = (query.flatten(3, 4) @ key.contiguous().mT).unflatten(3, query.shape[3:5])
    raw, mass, lse, largest = raw_weights(capped(logits, softcap) + hidden(visible, logits.dtype)[:, :, None, None])
    # Divided here, the output has D numbers to divide and the weights S.
    output = (raw.flatten(3, 4) @ value).unflatten(3, query.shape[3:5]) / mass[..., None]
    return output.permute(0, 1, 4, 2, 3, 5), lse.permute(0, 1, 4, 2, 3), largest.permute(0, 1, 4, 2, 3)


def _filled(entries: Tensor, missing: int) -> Tensor:
    """``B T …`` with zeros behind it."""
    if missing == 0:
        return entries
    return torch.cat((entries, entries.new_zeros(entries.shape[0], missing, *entries.shape[2:])), dim=1)
