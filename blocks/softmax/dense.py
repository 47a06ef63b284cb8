"""The definition: every query against every pair."""

from __future__ import annotations

import math

from blocks.flow import Partial
from blocks.legend import Bool, Float, Tensor, torch
from blocks.tensors import accumulating

ROWS = 512
"""Queries whose logits are held at once."""
LOG2_E = 1 / math.log(2)


def dense(
    query: Float[Tensor, "B T H D"],
    key: Float[Tensor, "B S K D"],
    value: Float[Tensor, "B S K V"],
    visible: Bool[Tensor, "B T S"] | Bool[Tensor, "B K T S"] | Bool[Tensor, "B K T G S"] | Float[Tensor, "B K T S"],
    softcap: float | None = None,
    faded: tuple[Float[Tensor, "B T H"], Float[Tensor, "B S H"]] | None = None,
) -> Partial:
    """Softmax over the visible pairs, in blocks of queries. Keys and values are not repeated for the query heads.

    visible: one mask for all heads, or one per key head, or one per query head (G of a key head), or the result of ``mask_bias``
    for it. softcap: see ``cap``. faded: running sums of decay at the queries and at the pairs; a logit decreases by their
    difference.
    """
    dtype = accumulating(query.dtype)
    grouped = query.to(dtype).unflatten(2, (key.shape[2], -1)).permute(0, 2, 1, 3, 4)
    keys, values = key.to(dtype).permute(0, 2, 3, 1), value.to(dtype).permute(0, 2, 1, 3)
    visible = visible if visible.dim() > 3 else visible[:, None]
    visible = visible if visible.dim() == 5 else visible[:, :, :, None]
    outputs, masses, maxima = [], [], []
    for start in range(0, query.shape[1], ROWS):
        rows = grouped[:, :, start : start + ROWS]
        seen = visible[:, :, start : start + ROWS]
        logits = (rows.flatten(2, 3) @ keys).unflatten(2, rows.shape[2:4]) / math.sqrt(query.shape[-1])
        logits = cap(logits, softcap)
        if faded is not None:
            totals, since = (sums.transpose(1, 2).unflatten(1, (key.shape[2], -1)) for sums in faded)
            decayed = totals[:, :, :, start : start + ROWS, None] - since[:, :, :, None]
            logits = logits + decayed.to(dtype).transpose(2, 3)
        weights, lse, largest = masked_softmax(logits, seen)
        outputs.append((weights.flatten(2, 3) @ values).unflatten(2, rows.shape[2:4]))
        masses.append(lse)
        maxima.append(largest)
    output, lse, largest = (torch.cat(blocks, dim=2) for blocks in (outputs, masses, maxima))
    output = output.permute(0, 2, 1, 3, 4).flatten(2, 3).to(query.dtype)
    lse, largest = (tensor.permute(0, 2, 1, 3).flatten(2, 3) for tensor in (lse, largest))
    return Partial(output, lse, maximum=largest)


def cap(logits: Tensor, softcap: float | None) -> Tensor:
    """c·tanh(logit / c), as Gemma 2 keeps them small (arXiv:2408.00118, section 2); as they are for None."""
    return logits if softcap is None else softcap * (logits / softcap).tanh()


def masked_softmax(logits: Tensor, visible: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Weights, log-sum-exp and largest logit over the last dimension; 0, -inf and -inf where nothing is visible."""
    raw, mass, lse, maximum = raw_weights(logits + mask_bias(visible, logits.dtype))
    return raw / mass[..., None], lse, maximum


def mask_bias(visible: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the tensor to add to logits: 0 for visible pairs, -inf for others. A floating-point argument is not computed again.
    Adding is many times as fast as filling by a mask."""
    if visible.dtype != torch.bool:
        return visible.to(dtype)
    return 1 - visible.to(dtype).reciprocal_()


def raw_weights(logits: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Weights before they are divided by their sum, what they are to be divided by, log-sum-exp and largest logit."""
    with torch.no_grad():
        largest = logits.amax(-1, keepdim=True)
        largest = largest.masked_fill(largest.isneginf(), 0.0)
    # On a CPU, powers of 2 are as fast for -inf as for any number; powers of e are not.
    raw = (logits - largest).mul_(LOG2_E).exp2_()
    mass, top, largest = raw.sum(-1), raw.amax(-1), largest.squeeze(-1)
    empty = mass == 0
    mass = mass.masked_fill(empty, 1.0)
    # By way of the largest weight, which is 1, the maximum has its gradient without a copy of the logits.
    lse, maximum = ((weights.masked_fill(empty, 1.0).log() + largest).masked_fill(empty, -math.inf) for weights in (mass, top))
    return raw, mass, lse, maximum
