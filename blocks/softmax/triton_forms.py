"""A window with its mass by this project's own kernel, for a read that needs the mass."""

from __future__ import annotations

from blocks.flow import Partial
from blocks.kernels import TRITON_PACKAGE, Kernel, gpu_obstacle
from blocks.legend import Float, Int, Tensor, torch
from blocks.operation import Form, Setting, size_obstacle

WITH_MASS = Kernel("blocks.fused.window", "with_mass", TRITON_PACKAGE)
WIDEST = 256


def obstacle(setting: Setting, beside: Form | None = None) -> str | None:
    """Return why a form that calls the kernel cannot run, or None. beside: a form without a mass, which runs instead if no read
    needs the mass."""
    reasons = {
        "its blocks are for several tokens": setting.one_token,
        "it returns no largest logit, and the read needs it": setting.needs_maximum,
        "it caps no logits": setting.capped,
        f"it supports at most {WIDEST} numbers a head": setting.shape is not None and setting.shape.head_dim > WIDEST,
    }
    reason = next((reason for reason, holds in reasons.items() if holds), None) or size_obstacle(setting) or gpu_obstacle(setting)
    if reason is None and beside is not None and not (setting.needs_mass or beside.missing() or beside.obstacle(setting)):
        return f"no read needs the mass, and {beside.description} runs without it"
    return reason


def attend_in_window(
    query: Float[Tensor, "B T H D"],
    key: Float[Tensor, "B E K D"],
    value: Float[Tensor, "B E K V"],
    position: Int[Tensor, "B E"],
    segment: Int[Tensor, "B E"] | None,
    past_length: int,
    reach: Int[Tensor, "B T"] | None = None,
) -> Partial:
    """Attend from each query to the last ``past_length`` entries of its document, its own among them; or to its own and ``reach``
    before it, fewer than ``past_length``. The queries belong to the last entries. position: -1 where there is no pair."""
    earlier = key.shape[1] - query.shape[1]
    query_entry = torch.arange(earlier, key.shape[1], device=key.device)
    first = (query_entry - (past_length - 1 if reach is None else reach)).expand(query.shape[:2])
    if segment is not None:
        first = first.maximum(torch.searchsorted(segment, segment[:, earlier:].contiguous()))
    output, lse = WITH_MASS(query.to(value.dtype), key.to(value.dtype), value, position, first.clamp(min=0), past_length)
    return Partial(output.to(query.dtype), lse)
