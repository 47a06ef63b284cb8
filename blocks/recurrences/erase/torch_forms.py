"""The definition, and the forms of PyTorch: those of the generalised delta rule, whose row r reads the state before its decay."""

from __future__ import annotations

from blocks.legend import Float, Int, Tensor, torch
from blocks.recurrences.rank_one.chunked import chunked as edit_chunks
from blocks.recurrences.rank_one.recurrent import step as edit_once
from blocks.tensors import repeat_heads


def naive(
    query: Float[Tensor, "B T H F"],
    key: Float[Tensor, "B T N F"],
    value: Float[Tensor, "B T K V"],
    erase: Float[Tensor, "B T N F"],
    log_decay: Tensor | None,
    segment: Int[Tensor, "B T"] | None,
    state: Float[Tensor, "B N F V"],
) -> tuple[Float[Tensor, "B T H V"], Float[Tensor, "B N F V"]]:
    """S_t = (I - k_tᵀ (b_t ∘ k_t)) D_t S_{t-1} + k_tᵀ v_t, o_t = q_t S_t. A new document starts from S = 0."""
    heads, state_heads = query.shape[2], key.shape[2]
    value = repeat_heads(value, state_heads)
    outputs = []
    for t in range(query.shape[1]):
        if segment is not None:
            before = segment[:, t - 1] if t else torch.zeros_like(segment[:, 0])
            state = state * (segment[:, t] == before)[:, None, None, None]
        if log_decay is not None:
            state = state * log_decay[:, t].exp().view(*state.shape[:2], -1, 1)
        erased = torch.einsum("bnf,bnfv->bnv", erase[:, t] * key[:, t], state)
        state = state + key[:, t, :, :, None] * (value[:, t] - erased)[..., None, :]
        outputs.append(torch.einsum("bhf,bhfv->bhv", query[:, t], state.repeat_interleave(heads // state_heads, dim=1)))
    return torch.stack(outputs, dim=1), state


def chunked(
    query: Float[Tensor, "B T H F"],
    key: Float[Tensor, "B T N F"],
    value: Float[Tensor, "B T K V"],
    erase: Float[Tensor, "B T N F"],
    log_decay: Tensor | None,
    segment: Int[Tensor, "B T"] | None,
    state: Float[Tensor, "B N F V"],
) -> tuple[Float[Tensor, "B T H V"], Float[Tensor, "B N F V"]]:
    """S_t = (I - k_tᵀ (b_t ∘ k_t)) exp(decay_t) S_{t-1} + k_tᵀ v_t and o_t = q_t S_t of any number of tokens."""
    return edit_chunks(query, key, value, _read(key, erase, log_decay), None, log_decay, segment, state)


def step(
    query: Float[Tensor, "B 1 H F"],
    key: Float[Tensor, "B 1 N F"],
    value: Float[Tensor, "B 1 K V"],
    erase: Float[Tensor, "B 1 N F"],
    log_decay: Tensor | None,
    segment: Int[Tensor, "B 1"] | None,
    state: Float[Tensor, "B N F V"],
    *,
    in_place: bool = False,
) -> tuple[Float[Tensor, "B 1 H V"], Float[Tensor, "B N F V"]]:
    """Return the recurrence once."""
    read = _read(key, erase, log_decay)
    return edit_once(query, key, value, read, None, log_decay, segment, state, in_place=in_place)


def _read(key: Tensor, erase: Tensor, log_decay: Tensor | None) -> Tensor:
    """b ∘ k, times what the token's decay leaves of each feature."""
    if log_decay is None:
        return erase * key
    decay = log_decay if log_decay.dim() == 4 else log_decay[..., None]
    return erase * key * decay.exp()
