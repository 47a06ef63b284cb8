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
    """Softmax over the visible pairs, the same for all heads or one's own for each key head. No maximum is given."""
    kind = accumulating(query.dtype)
    batch, _, heads, size = query.shape
    grouped = query.to(kind).view(batch, key.shape[2], -1, size) / math.sqrt(size)
    logits = grouped @ key.to(kind).permute(0, 2, 3, 1)
    hidden = ~(visible[:, None] if visible.dim() == 2 else visible.transpose(1, 2))
    # As low as a number can be, and not -inf: where nothing is visible, the sums below stay numbers.
    logits = logits.masked_fill(hidden[:, :, None], torch.finfo(kind).min / 4)
    lse = logits.logsumexp(-1, keepdim=True)
    output = (logits - lse).exp() @ value.to(kind).permute(0, 2, 1, 3)
    return Partial(output.reshape(batch, 1, heads, size).to(query.dtype), lse.view(batch, 1, heads))
