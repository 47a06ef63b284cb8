"""Causal Latte on flash-linear-attention: ``chunk_lightnet`` in its two parts, ``fused_additive_gate`` and ``chunk_gla``, so that
keys and decays are computed in float32 also in a model of bfloat16.

The gate's normaliser log Σ_s exp(θ_s) is one number; the other forms carry a maximum and a sum. The state has it as the maximum,
with a sum of 1. Within a call the kernel updates it, and the rounding error of one token's decay is cancelled by the next one's.
"""

from __future__ import annotations

import math

from blocks.fla_kernels import kernel, one_row, rows
from blocks.legend import Float, Int, Tensor
from blocks.recurrences.additive import fla_forms as additive

GATE = kernel("ops.gsa.gate", "fused_additive_gate")
NOWHERE = -1e30
"""Replaces a logit of -inf, whose difference from another one would be NaN."""


def missing() -> str | None:
    """Return a message on the packages that the form needs and that are not installed, or None."""
    return GATE.missing() or additive.missing()


def means(
    query: Float[Tensor, "B T H L"],
    logits: Float[Tensor, "B T H L"],
    value: Float[Tensor, "B T K V"],
    segment: Int[Tensor, "B T"] | None,
    maximum: Float[Tensor, "B H L"],
    total: Float[Tensor, "B H L"],
    mean: Float[Tensor, "B H L V"],
) -> tuple[Float[Tensor, "B T H V"], Float[Tensor, "B H L"], Float[Tensor, "B H L"], Float[Tensor, "B H L V"]]:
    """Return the tokens' outputs, and the new maximum, total and mean. value: in the dtype of the products."""
    before = maximum.detach() + total.masked_fill(total == 0, 1.0).log()
    before = before[:, None].clamp(min=NOWHERE)
    entering = logits.clamp(min=NOWHERE)
    if segment is None:
        key, log_decay, after = GATE(entering, initial_state=before)
    else:
        documents = rows(segment)
        start = documents.states(before, NOWHERE)
        key, log_decay, after = GATE(one_row(entering), initial_state=start, cu_seqlens=documents.bounds)
        key, log_decay = (tensor.unflatten(1, segment.shape).squeeze(0) for tensor in (key, log_decay))
        after = documents.final_state(after)
    # A token without a logit adds nothing. The first with one has nothing before it to decay.
    key = key.masked_fill(logits.isneginf(), 0.0)
    log_decay = log_decay.masked_fill(logits.isneginf() | (log_decay < NOWHERE / 2), 0.0)
    output, mean = additive.chunked(query, key, value, log_decay, segment, mean)
    empty = after.squeeze(1) < NOWHERE / 2
    carried = after.squeeze(1).detach().masked_fill(empty, -math.inf)
    sums = (after - after.detach()).squeeze(1).exp().masked_fill(empty, 0.0)
    return output, carried, sums, mean
