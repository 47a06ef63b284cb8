"""A window in blocks: each block of queries meets the pairs of its block and of the window before it, and no others."""

from __future__ import annotations

import math
from functools import partial

from blocks.flow import Partial
from blocks.legend import Bool, Float, Int, Tensor, torch
from blocks.softmax.dense import cap, mask_bias, raw_weights
from blocks.softmax.native import native
from blocks.tensors import accumulating, derives_by_hand, may_read_numbers

BLOCK = 64
"""Queries in a block: a smaller one leaves the matrix products too small, a larger one meets more pairs that it does not see."""
SPAN = 512
"""Queries whose logits are computed at once: these fit into the processor's cache."""


def windowed(
    query: Float[Tensor, "B T H D"],
    key: Float[Tensor, "B E K D"],
    value: Float[Tensor, "B E K V"],
    present: Bool[Tensor, "B E"] | None,
    segment: Int[Tensor, "B E"] | None,
    size: int,
    reach: Int[Tensor, "B T"] | None = None,
    query_segment: Int[Tensor, "B T"] | None = None,
    softcap: float | None = None,
    *,
    by_kernel: bool = False,
) -> Partial:
    """Query t is at entry W + t and sees the last ``size`` = W entries up to it, in its document.

    present: which entries are pairs (None: all); segment: their documents (None: one); reach: how many entries before its own each
    query sees, less than W (None: all W - 1); query_segment: the queries' documents, if they differ from those of their entries.
    softcap: of the logits. by_kernel: use PyTorch's kernel if ``native_obstacle``.
    """
    dtype, length = accumulating(query.dtype), query.shape[1]
    block = min(BLOCK, length)
    count = math.ceil(length / block)
    missing = count * block - length

    within, before = None if reach is None else _pad_end(reach, missing).unflatten(1, (count, block)), size
    if within is not None and may_read_numbers(within):
        # Of what may be before a block, that which its queries reach: of a window of chunks half, where chunks are blocks.
        before = min(size, max(0, int((within - torch.arange(block)).max())))

    def blocks(entries: Tensor) -> Tensor:
        """Return each block's own entries and so many before them."""
        return _pad_end(entries[:, size - before :], missing).unfold(1, before + block, block)

    back = torch.arange(before, before + block, device=query.device)[:, None] - torch.arange(before + block, device=query.device)
    visible = ((back >= 0) & (back < size)).expand(1, count, -1, -1)
    if within is not None:
        visible = visible & (back <= within[..., None])
    if present is not None:
        visible = visible & blocks(present)[:, :, None]
    if segment is not None:
        documents = blocks(segment)
        asking = documents[..., before:]
        if query_segment is not None:
            asking = _pad_end(query_segment, missing).unflatten(1, (count, block))
        visible = visible & (asking[..., :, None] == documents[..., None, :])

    if softcap is None and not by_kernel and derives_by_hand(query):
        from blocks.softmax.gradients import blocks as with_gradients

        keys, values = (states[:, size - before :].to(dtype) for states in (key, value))
        output, lse, maximum = with_gradients(query.to(dtype), keys, values, mask_bias(visible, dtype), before)
        return Partial(output.to(query.dtype), lse, maximum=maximum)

    queries = _pad_end(query.to(dtype), missing).unflatten(1, (count, block))
    keys, values = (blocks(states.to(dtype)).permute(0, 1, 4, 2, 3) for states in (key, value))
    attend = _of_kernel if by_kernel else partial(_of_products, softcap)
    outputs = map(attend, *(tensor.split(max(SPAN // block, 1), dim=1) for tensor in (queries, keys, values, visible)))
    output, lse, *largest = (torch.cat(parts, dim=1).flatten(1, 2)[:, :length] for parts in zip(*outputs, strict=True))
    return Partial(output.to(query.dtype), lse, maximum=largest[0] if largest else None)


def _of_products(
    softcap: float | None,
    query: Float[Tensor, "B n c H D"],
    key: Float[Tensor, "B n S K D"],
    value: Float[Tensor, "B n S K V"],
    visible: Bool[Tensor, "#B n c S"],
) -> tuple[Float[Tensor, "B n c H V"], Float[Tensor, "B n c H"], Float[Tensor, "B n c H"]]:
    """n blocks of c queries: their outputs, log-sum-exps and largest logits."""
    grouped = query.unflatten(3, (key.shape[3], -1)).permute(0, 1, 3, 4, 2, 5) / math.sqrt(query.shape[-1])
    keys, values = key.transpose(2, 3), value.transpose(2, 3)
    # Copied row by row here; the product would copy the transposed keys number by number.
    logits = (grouped.flatten(3, 4) @ keys.contiguous().mT).unflatten(3, grouped.shape[3:5])
    raw, mass, lse, largest = raw_weights(cap(logits, softcap) + mask_bias(visible, logits.dtype)[:, :, None, None])
    # Divided here, the output has V numbers to divide and the weights S.
    output = (raw.flatten(3, 4) @ values).unflatten(3, grouped.shape[3:5]) / mass[..., None]
    lse, largest = (tensor.permute(0, 1, 4, 2, 3).flatten(3, 4) for tensor in (lse, largest))
    return output.permute(0, 1, 4, 2, 3, 5).flatten(3, 4), lse, largest


def _of_kernel(
    query: Float[Tensor, "B n c H D"],
    key: Float[Tensor, "B n S K D"],
    value: Float[Tensor, "B n S K V"],
    visible: Bool[Tensor, "#B n c S"],
) -> tuple[Float[Tensor, "B n c H V"], Float[Tensor, "B n c H"]]:
    """Outputs and log-sum-exps. To the kernel, a block is a row."""
    batch = query.shape[0]
    seen = visible.expand(batch, -1, -1, -1).flatten(0, 1)[:, None]
    rows = (states.flatten(0, 1) for states in (query, key, value))
    result = native(*rows, bias=mask_bias(seen, query.dtype))
    assert result.lse is not None, "the kernel returns it"
    return result.output.unflatten(0, (batch, -1)), result.lse.unflatten(0, (batch, -1))


def _pad_end(entries: Tensor, missing: int) -> Tensor:
    """Return ``B T …`` followed by zeros."""
    if missing == 0:
        return entries
    return torch.cat((entries, entries.new_zeros(entries.shape[0], missing, *entries.shape[2:])), dim=1)
