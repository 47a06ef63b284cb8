"""One token: the form of decode."""

from __future__ import annotations

from blocks.flow import repeat_heads
from blocks.legend import Float, Int, Tensor


def step(
    query: Float[Tensor, "B 1 H F"],
    key: Float[Tensor, "B 1 N F"],
    value: Float[Tensor, "B 1 K V"],
    rate: Float[Tensor, "B 1 N"],
    log_decay: Float[Tensor, "B 1 N"] | None,
    segment: Int[Tensor, "B 1"] | None,
    state: Float[Tensor, "B N F V"],
) -> tuple[Float[Tensor, "B 1 H V"], Float[Tensor, "B N F V"]]:
    """The recurrence once; the query heads of a state head read it together."""
    batch, _, state_heads, features = key.shape
    if log_decay is not None:
        state = state * log_decay.exp().view(batch, state_heads, 1, 1)
    if segment is not None:
        state = state * (segment == 0).view(batch, 1, 1, 1)
    row = key.view(batch, state_heads, 1, features)
    missing = repeat_heads(value, state_heads).view(batch, state_heads, 1, -1) - row @ state
    state = state + row.mT * (rate.view(batch, state_heads, 1, 1) * missing)
    output = query.view(batch, state_heads, -1, features) @ state
    return output.reshape(batch, 1, -1, value.shape[-1]), state
