"""The definition: one token after the other."""

from __future__ import annotations

from blocks.legend import Float, Int, Tensor, torch
from blocks.tensors import repeat_heads


def naive(
    query: Float[Tensor, "B T H F"],
    key: Float[Tensor, "B T N F"],
    value: Float[Tensor, "B T K V"],
    own: Float[Tensor, "B T N"],
    before: Float[Tensor, "B T N"],
    log_decay: Float[Tensor, "B T N"] | None,
    segment: Int[Tensor, "B T"] | None,
    state: Float[Tensor, "B N F V"],
    last_key: Float[Tensor, "B N F"],
    last_value: Float[Tensor, "B K V"],
) -> tuple[Float[Tensor, "B T H V"], Float[Tensor, "B N F V"]]:
    """S_t = α_t (S_{t-1} + b_t k_{t-1}ᵀ v_{t-1}) + a_t k_tᵀ v_t, o_t = q_t S_t; a new document starts from S = 0 without a pair."""
    heads, state_heads = query.shape[2], key.shape[2]
    value, last_value = repeat_heads(value, state_heads), repeat_heads(last_value, state_heads, dim=1)
    outputs = []
    for t in range(query.shape[1]):
        state = state + before[:, t, :, None, None] * last_key[..., None] * last_value[:, :, None]
        if log_decay is not None:
            state = state * log_decay[:, t].exp()[..., None, None]
        if segment is not None:
            earlier = segment[:, t - 1] if t else torch.zeros_like(segment[:, 0])
            state = state * (segment[:, t] == earlier)[:, None, None, None]
        last_key, last_value = key[:, t], value[:, t]
        state = state + own[:, t, :, None, None] * last_key[..., None] * last_value[:, :, None]
        outputs.append(torch.einsum("bhf,bhfv->bhv", query[:, t], state.repeat_interleave(heads // state_heads, dim=1)))
    return torch.stack(outputs, dim=1), state
