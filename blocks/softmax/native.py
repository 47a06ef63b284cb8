"""Softmax by the kernel behind PyTorch's own attention, which gives the log-sum-exp, no gradient of it, and no largest logit."""

from __future__ import annotations

import math

from blocks.flow import Partial, accumulating, all_there, as_dtype
from blocks.legend import Bool, Float, Int, Tensor, torch
from blocks.operation import Setting, unbroken
from blocks.softmax.single import rows


def native_one(
    query: Float[Tensor, "B 1 H D"],
    key: Float[Tensor, "B S K D"],
    value: Float[Tensor, "B S K D"],
    position: Int[Tensor, "B S"] | Int[Tensor, "B S K"] | None,
    hiding: Float[Tensor, "B 1 1 S"] | None = None,
    softcap: None = None,
) -> Partial:
    """``single`` by the kernel, which is told what to hide only where something is hidden. softcap: none, as it caps nothing."""
    empty = None
    if position is not None and not all_there(position):
        # The logarithms of 0 and of 1: one operation fewer than ``hidden`` takes, which is the faster one of many queries.
        absent = (rows(position) >= 0).to(accumulating(query.dtype)).log()
        hiding = absent if hiding is None else hiding + absent
        empty = hiding.amax(-1).isneginf()
    return native(query, key, value, hiding, empty)


def native_dense(
    query: Float[Tensor, "B T H D"],
    key: Float[Tensor, "B S H D"],
    value: Float[Tensor, "B S H D"],
    hiding: Float[Tensor, "B H T S"],
    softcap: None = None,
) -> Partial:
    """``dense`` by the kernel, of so few queries that ``hiding``, what is added to their logits, may stand in memory as a whole."""
    return native(query, key, value, hiding, hiding.amax(-1).isneginf())


def native(
    query: Float[Tensor, "B T H D"],
    key: Float[Tensor, "B S K D"],
    value: Float[Tensor, "B S K D"],
    hiding: Float[Tensor, "#B #H #T S"] | None,
    empty: Bool[Tensor, "#B #H #T"] | None,
) -> Partial:
    """Outputs and log-sum-exps by the kernel. hiding: what is added to the logits, 0 or -inf; None: nothing is hidden. empty: which
    queries see nothing; None: each sees something."""
    dtype = accumulating(query.dtype)
    query_, *pairs = [as_dtype(states, dtype).transpose(1, 2) for states in (query, key, value)]
    output, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(query_, *pairs, attn_mask=hiding)
    lse = lse if empty is None else lse.masked_fill(empty, -math.inf)
    return Partial(as_dtype(output.transpose(1, 2), query.dtype), lse.transpose(1, 2))


def native_fits(setting: Setting) -> str | None:
    """The ``fits`` of forms that call this kernel."""
    if setting.needs_maximum:
        return "PyTorch's attention does not give the largest logit, and the read asks for it"
    if setting.capped:
        return "PyTorch's attention caps no logits"
    if setting.gradients:
        return "PyTorch's attention gives no gradient of its lse"
    return None if setting.device == "cpu" else "PyTorch's attention gives its lse on a CPU alone"


def native_one_fits(setting: Setting) -> str | None:
    """The ``fits`` of their steps of decode."""
    return native_fits(setting) or unbroken(setting)
