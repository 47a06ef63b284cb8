"""The forms of PyTorch: those of the generalised delta rule, whose row r reads the state before its decay."""

from __future__ import annotations

from blocks.legend import Float, Int, Tensor
from blocks.recurrences.rank_one.chunked import chunked as edit_chunks
from blocks.recurrences.rank_one.step import step as edit_once


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
