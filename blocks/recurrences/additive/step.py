"""One token: the form of decode."""

from __future__ import annotations

from blocks.legend import Float, Int, Tensor


def step(
    query: Float[Tensor, "B 1 H F"],
    key: Float[Tensor, "B 1 N F"],
    value: Float[Tensor, "B 1 K V"],
    log_decay: Tensor | None,
    segment: Int[Tensor, "B 1"] | None,
    state: Float[Tensor, "B N F V"],
) -> tuple[Float[Tensor, "B 1 H V"], Float[Tensor, "B N F V"]]:
    """The recurrence once; the query heads of a state head read it together."""
    batch, _, state_heads, features = key.shape
    key_heads, width = value.shape[2:]
    if log_decay is not None:
        state = state * log_decay.exp().view(batch, state_heads, -1, 1)
    if segment is not None:
        state = state * (segment == 0).view(batch, 1, 1, 1)
    grouped = key.view(batch, key_heads, -1, features, 1) * value.view(batch, key_heads, 1, 1, width)
    state = state + grouped.view(batch, state_heads, features, width)
    output = query.view(batch, state_heads, -1, features) @ state
    return output.reshape(batch, 1, -1, width), state
