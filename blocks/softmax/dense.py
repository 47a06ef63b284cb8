"""The definition, every query against every pair, and one query against the pairs that are held."""

from __future__ import annotations

import math

from blocks.flow import Partial
from blocks.legend import Bool, Float, Int, Tensor, torch
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


# One query against the pairs that are held, in any order: the forms of decode.
#
#     query     B 1 H D
#     key       B S K D
#     value     B S K V
#     position  B S, or B S K if each key head has its own pairs: -1 where there is none. None: each is a pair
#     bias      B 1 1 S, or B K Q S of Q query heads a key head: added to the logits, -inf for pairs that the query does not
#               reach. None: it reaches all
#     softcap   see ``cap``
#
# Where there is no pair, the output is 0 and the lse -inf.


def single(
    query: Float[Tensor, "B 1 H D"],
    key: Float[Tensor, "B S K D"],
    value: Float[Tensor, "B S K V"],
    position: Int[Tensor, "B S"] | Int[Tensor, "B S K"] | None,
    bias: Float[Tensor, "B 1 1 S"] | Float[Tensor, "B K Q S"] | None = None,
    softcap: float | None = None,
) -> Partial:
    """Softmax over the pairs."""
    dtype = accumulating(query.dtype)
    batch, _, heads, size = query.shape
    grouped = query.to(dtype).view(batch, key.shape[2], -1, size) / math.sqrt(size)
    logits = cap(grouped @ key.to(dtype).permute(0, 2, 3, 1), softcap)
    logits = logits if bias is None else logits + bias
    # Last, so that gradients of hidden logits, which are NaN without any pair, do not reach earlier operations.
    logits = logits if position is None else logits.masked_fill(rows(position) < 0, -math.inf)
    lse = logits.logsumexp(-1, keepdim=True)
    weights = (logits - lse.clamp(min=torch.finfo(dtype).min)).exp()
    output = weights @ value.to(dtype).permute(0, 2, 1, 3)
    maximum = logits.amax(-1).view(batch, 1, heads)
    return Partial(output.reshape(batch, 1, heads, -1).to(query.dtype), lse.view(batch, 1, heads), maximum=maximum)


def rows(position: Tensor) -> Tensor:
    """``B 1 1 S``, or ``B K 1 S``."""
    return position[:, None, None] if position.dim() == 2 else position.transpose(1, 2)[:, :, None]
