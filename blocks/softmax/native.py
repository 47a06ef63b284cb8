"""Softmax by the kernel of PyTorch's own attention, which returns the log-sum-exp without its gradient, and no largest logit."""

from __future__ import annotations

import math

from blocks.flow import Partial
from blocks.legend import Float, Int, Tensor, torch
from blocks.operation import Setting, row_obstacle, size_obstacle
from blocks.softmax.dense import rows
from blocks.tensors import accumulating, all_present


def native(
    query: Float[Tensor, "B T H D"],
    key: Float[Tensor, "B S K D"],
    value: Float[Tensor, "B S K V"],
    bias: Float[Tensor, "#B #H #T S"] | None,
    softcap: None = None,
    *,
    all_see: bool = False,
) -> Partial:
    """``dense`` by the kernel, for so few queries that ``bias`` fits into memory as a whole. bias: added to the logits,
    0 or -inf; None: all pairs are visible. softcap: must be None, as the kernel has none. all_see: each query is known to have
    a visible pair.
    """
    dtype = accumulating(query.dtype)
    wide = query
    if not query.dtype == key.dtype == value.dtype == dtype:
        wide, key, value = query.to(dtype), key.to(dtype), value.to(dtype)
    inputs = wide.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2)
    output, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(*inputs, attn_mask=bias)
    if bias is not None and not all_see:
        lse = lse.masked_fill(bias.amax(-1).isneginf(), -math.inf)
    output = output.transpose(1, 2)
    return Partial(output if wide is query else output.to(query.dtype), lse.transpose(1, 2))


def native_step(
    query: Float[Tensor, "B 1 H D"],
    key: Float[Tensor, "B S K D"],
    value: Float[Tensor, "B S K V"],
    position: Int[Tensor, "B S"] | Int[Tensor, "B S K"] | None,
    bias: Float[Tensor, "B 1 1 S"] | None = None,
    softcap: None = None,
) -> Partial:
    """``single`` by the kernel, which receives a mask only if some pair is hidden. If every entry is a pair, ``bias`` leaves some
    visible."""
    if position is None or all_present(position):
        return native(query, key, value, bias, all_see=True)
    # The logarithms of 0 and of 1: one operation fewer than ``mask_bias``, which is faster for many queries.
    absent = (rows(position) >= 0).to(accumulating(query.dtype)).log()
    return native(query, key, value, absent if bias is None else bias + absent)


def native_obstacle(setting: Setting) -> str | None:
    """Return why forms that call this kernel cannot run, or None."""
    if setting.needs_maximum:
        return "PyTorch's attention does not return the largest logit, and the read needs it"
    if setting.capped:
        return "PyTorch's attention caps no logits"
    if setting.gradients:
        return "PyTorch's attention has no gradient of its lse"
    return size_obstacle(setting) if setting.device == "cpu" else "PyTorch's attention returns its lse on a CPU only"


def native_step_obstacle(setting: Setting) -> str | None:
    """Return why this kernel cannot run for a step of decode, or None."""
    return native_obstacle(setting) or row_obstacle(setting)
