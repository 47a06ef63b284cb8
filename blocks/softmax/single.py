"""One query against the pairs that are held, in any order: the form of decode."""

from __future__ import annotations

import math

from blocks.flow import Partial, accumulating
from blocks.legend import Bool, Float, Tensor, torch


def single(
    query: Float[Tensor, "B 1 H D"],
    key: Float[Tensor, "B S K D"],
    value: Float[Tensor, "B S K D"],
    visible: Bool[Tensor, "B S"] | Bool[Tensor, "B S K"],
) -> Partial:
    """Softmax over the visible pairs, the same for all heads or one's own for each key head: 0 and -inf where there are none. No
    maximum is given."""
    kind = accumulating(query.dtype)
    batch, _, heads, size = query.shape
    grouped = query.to(kind).view(batch, key.shape[2], -1, size) / math.sqrt(size)
    logits = grouped @ key.to(kind).permute(0, 2, 3, 1)
    hidden = ~(visible[:, None] if visible.dim() == 2 else visible.transpose(1, 2))
    logits = logits.masked_fill(hidden[:, :, None], -math.inf)
    lse = logits.logsumexp(-1, keepdim=True)
    weights = (logits - lse.clamp(min=torch.finfo(kind).min)).exp()
    output = weights @ value.to(kind).permute(0, 2, 1, 3)
    return Partial(output.reshape(batch, 1, heads, size).to(query.dtype), lse.view(batch, 1, heads))
