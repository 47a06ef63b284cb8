"""The decay of a state of matrices at one token."""

from __future__ import annotations

from blocks.legend import Float, Int, Tensor


def decay_state(
    state: Float[Tensor, "B N F V"], log_decay: Tensor | None, segment: Int[Tensor, "B 1"] | None, *, in_place: bool
) -> Float[Tensor, "B N F V"]:
    """Return the state after the token's decay, B 1 N or B 1 N F, and empty where a document starts. in_place: written over. It is
    contiguous."""
    if log_decay is not None:
        decay = log_decay.exp().view(*state.shape[:2], -1, 1)
        state = state.mul_(decay) if in_place else state * decay
    if segment is not None:
        state = state * (segment == 0)[..., None, None]
    return state.contiguous()
