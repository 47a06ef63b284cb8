"""One token: the form of decode."""

from __future__ import annotations

from blocks.legend import Float, Int, Tensor
from blocks.recurrences.decay import decay_state


def step(
    query: Float[Tensor, "B 1 H F"],
    key: Float[Tensor, "B 1 N F"],
    value: Float[Tensor, "B 1 K V"],
    read: Float[Tensor, "B 1 N F"],
    removed: Float[Tensor, "B 1 N F"] | None,
    log_decay: Tensor | None,
    segment: Int[Tensor, "B 1"] | None,
    state: Float[Tensor, "B N F V"],
    *,
    in_place: bool = False,
) -> tuple[Float[Tensor, "B 1 H V"], Float[Tensor, "B N F V"]]:
    """Return the recurrence once. The query heads of a state head read it together."""
    batch, state_heads, features, width = state.shape
    if segment is not None:
        state = state * (segment == 0)[..., None, None]
    read_output = read.reshape(-1, 1, features).bmm(state.reshape(-1, features, width)).view(batch, state_heads, 1, width)
    state = decay_state(state, log_decay, None, in_place=in_place)
    row, key_heads = key.reshape(batch, state_heads, features, 1), value.shape[2]
    if removed is None:
        value = (value.view(batch, key_heads, 1, width) - read_output.view(batch, key_heads, -1, width)).flatten(1, 2)[:, :, None]
    else:
        column = removed.reshape(batch, state_heads, features, 1)
        state = state.addcmul_(column, read_output, value=-1) if in_place else state.addcmul(column, read_output, value=-1)
        value = value.view(batch, key_heads, 1, 1, width).expand(-1, -1, state_heads // key_heads, -1, -1).flatten(1, 2)
    state = state.addcmul_(row, value) if in_place else state.addcmul(row, value)
    rows = query.reshape(batch * state_heads, -1, features).bmm(state.view(-1, features, width))
    return rows.view(batch, 1, -1, width), state
