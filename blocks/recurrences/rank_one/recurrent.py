"""Token by token: the definition, and the form of decode for one token."""

from __future__ import annotations

from blocks.legend import Float, Int, Tensor, torch
from blocks.recurrences.chunks import decay_state
from blocks.tensors import repeat_heads


def naive(
    query: Float[Tensor, "B T H F"],
    key: Float[Tensor, "B T N F"],
    value: Float[Tensor, "B T K V"],
    read: Float[Tensor, "B T N F"],
    removed: Float[Tensor, "B T N F"] | None,
    log_decay: Tensor | None,
    segment: Int[Tensor, "B T"] | None,
    state: Float[Tensor, "B N F V"],
) -> tuple[Float[Tensor, "B T H V"], Float[Tensor, "B N F V"]]:
    """S_t = (D_t - w_tᵀ r_t) S_{t-1} + k_tᵀ v_t, o_t = q_t S_t. A new document starts from S = 0."""
    heads, state_heads = query.shape[2], key.shape[2]
    value = repeat_heads(value, state_heads)
    removed = key if removed is None else removed
    outputs = []
    for t in range(query.shape[1]):
        if segment is not None:
            before = segment[:, t - 1] if t else torch.zeros_like(segment[:, 0])
            state = state * (segment[:, t] == before)[:, None, None, None]
        read_output = torch.einsum("bnf,bnfv->bnv", read[:, t], state)
        if log_decay is not None:
            state = state * log_decay[:, t].exp().view(*state.shape[:2], -1, 1)
        state = state - removed[:, t, :, :, None] * read_output[..., None, :] + key[:, t, :, :, None] * value[:, t, :, None, :]
        outputs.append(torch.einsum("bhf,bhfv->bhv", query[:, t], state.repeat_interleave(heads // state_heads, dim=1)))
    return torch.stack(outputs, dim=1), state


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
