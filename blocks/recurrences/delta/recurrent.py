"""Token by token: the definition, and the form of decode for one token."""

from __future__ import annotations

from blocks.legend import Float, Int, Tensor, torch
from blocks.recurrences.chunks import decay_state
from blocks.tensors import repeat_heads


def naive(
    query: Float[Tensor, "B T H F"],
    key: Float[Tensor, "B T N F"],
    value: Float[Tensor, "B T K V"],
    rate: Float[Tensor, "B T N"],
    log_decay: Tensor | None,
    segment: Int[Tensor, "B T"] | None,
    state: Float[Tensor, "B N F V"],
) -> tuple[Float[Tensor, "B T H V"], Float[Tensor, "B N F V"]]:
    """S_t = (I - β_t k_tᵀ k_t) D_t S_{t-1} + β_t k_tᵀ v_t, o_t = q_t S_t; a new document starts from S = 0."""
    heads, state_heads = query.shape[2], key.shape[2]
    value = repeat_heads(value, state_heads)
    outputs = []
    for t in range(query.shape[1]):
        if log_decay is not None:
            state = state * log_decay[:, t].exp().view(*state.shape[:2], -1, 1)
        if segment is not None:
            before = segment[:, t - 1] if t else torch.zeros_like(segment[:, 0])
            state = state * (segment[:, t] == before)[:, None, None, None]
        stored_value = torch.einsum("bnf,bnfv->bnv", key[:, t], state)
        written = rate[:, t, :, None] * key[:, t]
        state = state - written[..., None] * stored_value[..., None, :] + written[..., None] * value[:, t, :, None, :]
        outputs.append(torch.einsum("bhf,bhfv->bhv", query[:, t], state.repeat_interleave(heads // state_heads, dim=1)))
    return torch.stack(outputs, dim=1), state


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
