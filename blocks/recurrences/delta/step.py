"""One token: the form of decode."""

from __future__ import annotations

from blocks.legend import Float, Int, Tensor
from blocks.recurrences.decay import decay_state


def step(
    query: Float[Tensor, "B 1 H F"],
    key: Float[Tensor, "B 1 N F"] | None,
    value: Float[Tensor, "B 1 K V"] | None,
    rate: Float[Tensor, "B 1 N"] | None,
    log_decay: Tensor | None,
    segment: Int[Tensor, "B 1"] | None,
    state: Float[Tensor, "B N F V"],
    *,
    in_place: bool = False,
) -> tuple[Float[Tensor, "B 1 H V"], Float[Tensor, "B N F V"]]:
    """Return the recurrence once; the query heads of a state head read it together."""
    batch, state_heads, features, width = state.shape
    state = decay_state(state, log_decay, segment, in_place=in_place)
    if key is not None and value is not None and rate is not None:
        key_heads = value.shape[2]
        row = key.reshape(-1, 1, features)
        recalled = row.bmm(state.view(-1, features, width)).view(batch, key_heads, -1, width)
        missing = (value.view(batch, key_heads, 1, width) - recalled) * rate.view(batch, key_heads, -1, 1)
        new = row.view(batch, state_heads, features, 1), missing.view(batch, state_heads, 1, width)
        state = state.addcmul_(*new) if in_place else state.addcmul(*new)
    rows = query.reshape(batch * state_heads, -1, features).bmm(state.view(-1, features, width))
    return rows.view(batch, 1, -1, width), state
