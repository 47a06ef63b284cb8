"""One query against the pairs that are held, in any order: the forms of decode.

    query     B 1 H D
    key       B S K D
    value     B S K V
    position  B S, or B S K if each key head has its own pairs: -1 where there is none. None: each is a pair
    bias      B 1 1 S, or B K Q S of Q query heads a key head: added to the logits, -inf for pairs that the query does not
              reach. None: it reaches all
    softcap   see ``cap``

Where there is no pair, the output is 0 and the lse -inf.
"""

from __future__ import annotations

import math

from blocks.flow import Partial
from blocks.legend import Float, Int, Tensor, torch
from blocks.softmax.dense import cap
from blocks.tensors import accumulating


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
