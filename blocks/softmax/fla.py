"""A sliding window by flash-linear-attention's ``parallel_attn``, which answers without a mass.

What the window held before the call stands before the call's own pairs; the queries of those places are nobody's. Places that hold
no pair, and other documents, are documents apart.
"""

from __future__ import annotations

import math

from blocks.flow import Partial
from blocks.kernels import needs_gpu
from blocks.legend import Bool, Float, Int, Tensor, torch
from blocks.operation import Setting
from blocks.recurrences.fla import kernel, one_row, rows

ATTENTION = kernel("ops.attn", "parallel_attn")
WIDEST = 256


def fits(setting: Setting) -> str | None:
    """Of a form that calls it."""
    if setting.mass_asked or setting.maximum_asked:
        return "its attention gives no mass, and the read asks for it"
    if setting.sifted:
        return "a memory above keeps some pairs for good, and its window has no gaps"
    if setting.capped:
        return "its attention caps no logits"
    if setting.one_token:
        return "its blocks are for several tokens"
    if setting.shape is not None and setting.shape.head_dim > WIDEST:
        return f"its kernel takes heads of {WIDEST} dimensions at most"
    return needs_gpu(setting)


def behind(
    query: Float[Tensor, "B T H D"],
    key: Float[Tensor, "B E K D"],
    value: Float[Tensor, "B E K D"],
    present: Bool[Tensor, "B E"],
    segment: Int[Tensor, "B E"] | None,
    size: int,
) -> Partial:
    """Each query, the last of the entries among them, against the last ``size`` entries that are present, its own among them."""
    held = key.shape[1] - query.shape[1]
    queries = torch.cat((query.new_zeros(query.shape[0], held, *query.shape[2:]), query), dim=1)
    document = torch.zeros_like(present, dtype=torch.int64) if segment is None else segment
    # Absent entries stand before those that are held; what padding behind the tokens is given is nobody's.
    absent = torch.cat((~present[:, :held], torch.zeros_like(present[:, held:])), dim=1)
    document = document.masked_fill(absent, -1)
    flat = (one_row(of.to(value.dtype)) for of in (queries, key, value))
    output = ATTENTION(*flat, scale=1 / math.sqrt(query.shape[-1]), window_size=size, cu_seqlens=rows(document).bounds)
    return Partial(output.unflatten(1, document.shape).squeeze(0)[:, held:].to(query.dtype), None)
