"""Token by token: the definition, and the form of decode for one token."""

from __future__ import annotations

from blocks.legend import Float, Int, Tensor, torch
from blocks.recurrences.chunks import decay_state
from blocks.tensors import repeat_heads


def naive(
    query: Float[Tensor, "B T H F"],
    key: Float[Tensor, "B T N F"],
    value: Float[Tensor, "B T K V"],
    log_decay: Tensor | None,
    segment: Int[Tensor, "B T"] | None,
    state: Float[Tensor, "B N F V"],
) -> tuple[Float[Tensor, "B T H V"], Float[Tensor, "B N F V"]]:
    """S_t = D_t S_{t-1} + k_tᵀ v_t, o_t = q_t S_t; a new document starts from S = 0."""
    heads, state_heads = query.shape[2], key.shape[2]
    value = repeat_heads(value, state_heads)
    outputs = []
    for t in range(query.shape[1]):
        if log_decay is not None:
            decay = log_decay[:, t].exp()
            state = state * (decay[..., None, None] if decay.dim() == 2 else decay[..., None])
        if segment is not None:
            before = segment[:, t - 1] if t else torch.zeros_like(segment[:, 0])
            state = state * (segment[:, t] == before)[:, None, None, None]
        state = state + key[:, t, :, :, None] * value[:, t, :, None, :]
        outputs.append(torch.einsum("bhf,bhfv->bhv", query[:, t], state.repeat_interleave(heads // state_heads, dim=1)))
    return torch.stack(outputs, dim=1), state


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
