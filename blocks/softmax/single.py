"""One query against the pairs that are held, in any order: the forms of decode.

    query  B 1 H D      key  B S K D      value  B S K D      visible  B S, or B S K where each key head has its own

Where no pair is visible, the output is 0 and the lse -inf.
"""

from __future__ import annotations

import math

from blocks.flow import Partial, accumulating, seen_at_once
from blocks.legend import Bool, Float, Tensor, torch
from blocks.operation import Setting
from blocks.softmax.dense import capped


def single(
    query: Float[Tensor, "B 1 H D"],
    key: Float[Tensor, "B S K D"],
    value: Float[Tensor, "B S K D"],
    visible: Bool[Tensor, "B S"] | Bool[Tensor, "B S K"],
    softcap: float | None = None,
) -> Partial:
    """Softmax over the visible pairs. softcap: of the logits."""
    kind = accumulating(query.dtype)
    batch, _, heads, size = query.shape
    grouped = query.to(kind).view(batch, key.shape[2], -1, size) / math.sqrt(size)
    logits = capped(grouped @ key.to(kind).permute(0, 2, 3, 1), softcap)
    hidden = ~(visible[:, None] if visible.dim() == 2 else visible.transpose(1, 2))
    logits = logits.masked_fill(hidden[:, :, None], -math.inf)
    lse = logits.logsumexp(-1, keepdim=True)
    weights = (logits - lse.clamp(min=torch.finfo(kind).min)).exp()
    output = weights @ value.to(kind).permute(0, 2, 1, 3)
    maximum = logits.amax(-1).view(batch, 1, heads)
    return Partial(output.reshape(batch, 1, heads, size).to(query.dtype), lse.view(batch, 1, heads), maximum=maximum)


def native(
    query: Float[Tensor, "B 1 H D"],
    key: Float[Tensor, "B S K D"],
    value: Float[Tensor, "B S K D"],
    visible: Bool[Tensor, "B S"] | Bool[Tensor, "B S K"],
    softcap: None = None,
) -> Partial:
    """The same by the kernel behind PyTorch's own attention, which gives the lse and no maximum."""
    kind = accumulating(query.dtype)
    hiding = hidden = None
    if seen_at_once(~visible) is not False:
        visible = visible[:, None, None] if visible.dim() == 2 else visible.transpose(1, 2)[:, :, None]
        # The logarithms of 1 and of 0.
        hiding, hidden = visible.to(kind).log(), ~visible.any(-1)
    states = (states.to(kind).transpose(1, 2) for states in (query, key, value))
    output, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(*states, attn_mask=hiding)
    lse = lse if hidden is None else lse.masked_fill(hidden, -math.inf)
    return Partial(output.transpose(1, 2).to(query.dtype), lse.transpose(1, 2))


def native_fits(setting: Setting) -> str | None:
    """The ``fits`` of a form that is ``native``."""
    if setting.maximum_asked:
        return "PyTorch's attention does not give the largest logit, and the read asks for it"
    if setting.capped:
        return "PyTorch's attention caps no logits"
    if setting.device != "cpu":
        return "PyTorch's attention gives its lse on a CPU alone"
    return "PyTorch's attention gives no gradient of its lse" if setting.gradients else None
