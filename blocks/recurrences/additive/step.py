"""One token: the form of decode."""

from __future__ import annotations

from blocks.legend import Float, Int, Tensor
from blocks.recurrences.decay import decay_state


def step(
    query: Float[Tensor, "B 1 H F"],
    key: Float[Tensor, "B E n F"] | None,
    value: Float[Tensor, "B E K V"] | None,
    log_decay: Tensor | None,
    segment: Int[Tensor, "B 1"] | None,
    state: Float[Tensor, "B N F V"],
    *,
    in_place: bool = False,
) -> tuple[Float[Tensor, "B 1 H V"], Float[Tensor, "B N F V"]]:
    """Return the recurrence once, for the E pairs that enter together; the query heads of a state head read it together."""
    batch, state_heads, features, width = state.shape
    state = decay_state(state, log_decay, segment, in_place=in_place)
    if key is not None and value is not None:
        pairs, key_heads = key.shape[1], value.shape[2]
        shared = state.view(batch, key_heads, -1, features, width)
        if pairs == 1:
            new = key.view(batch, key_heads, -1, features, 1), value.view(batch, key_heads, 1, 1, width)
            if in_place:
                shared.addcmul_(*new)
            else:
                state = shared.addcmul(*new).view(state.shape)
        else:
            keys = key.reshape(batch, pairs, key_heads, -1).permute(0, 2, 3, 1)
            added = (keys @ value.transpose(1, 2)).view(batch, key_heads, -1, features, width)
            state = (shared + added).view(state.shape)
    rows = query.reshape(batch * state_heads, -1, features).bmm(state.view(-1, features, width))
    return rows.view(batch, 1, -1, width), state
