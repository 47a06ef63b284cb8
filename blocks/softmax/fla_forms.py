"""Softmax over pairs by flash-linear-attention's kernels, which return no mass: over a sliding window, or over all earlier pairs.
Pairs of the state are placed before those of the call; the outputs at their places are discarded. Empty places, and other
documents, are separate documents for the kernel.
"""

from __future__ import annotations

import math
from typing import Any

from blocks.fla_kernels import kernel, one_row, rows
from blocks.flow import Partial
from blocks.kernels import Kernel, gpu_obstacle
from blocks.legend import Bool, Float, Int, Tensor, torch
from blocks.operation import Setting, size_obstacle
from blocks.tensors import take

ATTENTION = kernel("ops.attn", "parallel_attn")
FORGETTING = kernel("ops.forgetting_attn", "parallel_forgetting_attn")
WIDEST = 256


def obstacle(setting: Setting) -> str | None:
    """Return why a form that calls these kernels cannot run, or None."""
    if setting.needs_mass or setting.needs_maximum:
        return "its attention returns no mass, and the read needs it"
    if setting.sifted:
        return "a memory above keeps some pairs for good, and its window has no gaps"
    if setting.capped:
        return "its attention caps no logits"
    if setting.one_token:
        return "its blocks are for several tokens"
    if setting.shape is not None and setting.shape.head_dim > WIDEST:
        return f"its kernel supports heads of {WIDEST} dimensions at most"
    return size_obstacle(setting) or gpu_obstacle(setting)


def attend_in_window(
    query: Float[Tensor, "B T H D"],
    key: Float[Tensor, "B E K D"],
    value: Float[Tensor, "B E K V"],
    present: Bool[Tensor, "B E"],
    segment: Int[Tensor, "B E"] | None,
    size: int,
) -> Partial:
    """Return each query, the last of the entries among them, against the last ``size`` entries that are present, its own among
    them."""
    document = _documents(present, segment, key.shape[1] - query.shape[1])
    return _run_kernel(ATTENTION, query, key, value, document, window_size=size)


def attend_causally(
    query: Float[Tensor, "B T H D"],
    key: Float[Tensor, "B E K D"],
    value: Float[Tensor, "B E K V"],
    present: Bool[Tensor, "B E"],
    segment: Int[Tensor, "B E"] | None,
    size: int | None,
    since: Float[Tensor, "B E H"] | None,
) -> Partial:
    """Return the outputs of the queries, which belong to the last entries. Each query reads the present entries up to its own, at
    most ``size`` (None: all). since: running sums of decays; a logit decreases by the difference between its two entries.
    """
    past_length = key.shape[1] - query.shape[1]
    if past_length:
        # Absent entries can be anywhere. Moved before all others they split no document.
        entry = torch.arange(past_length, key.shape[1], device=key.device).expand(key.shape[0], -1)
        order = torch.cat((present[:, :past_length].byte().argsort(dim=1, stable=True), entry), dim=1)
        key, value, present = (take(states, order) for states in (key, value, present))
        since = None if since is None else take(since, order)
    # The outputs at padding are discarded, so rows of one document need no cutting.
    document = segment if past_length == 0 else _documents(present, segment, past_length)
    if since is None:
        return _run_kernel(ATTENTION, query, key, value, document, window_size=size)
    steps = since.diff(dim=1, prepend=since[:, :1]).float()
    return _run_kernel(FORGETTING, query, key, value, document, g=steps if document is None else one_row(steps), window_size=size)


def _documents(present: Bool[Tensor, "B E"], segment: Int[Tensor, "B E"] | None, past_length: int) -> Int[Tensor, "B E"]:
    """Return the document of each entry. The state's absent entries are separate documents, before all present ones."""
    document = torch.zeros_like(present, dtype=torch.int64) if segment is None else segment
    # The outputs at padding are discarded.
    absent = torch.cat((~present[:, :past_length], torch.zeros_like(present[:, past_length:])), dim=1)
    return document.masked_fill(absent, -1)


def _run_kernel(
    run: Kernel, query: Tensor, key: Tensor, value: Tensor, document: Int[Tensor, "B E"] | None, **further: Any
) -> Partial:
    """document: of each entry; None: one a row."""
    past_length = key.shape[1] - query.shape[1]
    queries = torch.cat((query.new_zeros(query.shape[0], past_length, *query.shape[2:]), query), dim=1)
    inputs = [states.to(value.dtype) for states in (queries, key, value)]
    scale = 1 / math.sqrt(query.shape[-1])
    if document is None:
        output = run(*inputs, scale=scale, **further)
    else:
        output = run(*(one_row(states) for states in inputs), scale=scale, cu_seqlens=rows(document).bounds, **further)
        output = output.unflatten(1, document.shape).squeeze(0)
    return Partial(output[:, past_length:].to(query.dtype), None)
