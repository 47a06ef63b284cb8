"""The definition: one token after the other."""

from __future__ import annotations

from blocks.legend import Float, Int, Tensor, torch
from blocks.recurrences.fenwick.levels import is_level, level_after
from blocks.tensors import repeat_heads


def naive(
    query: Float[Tensor, "B T H F"],
    key: Float[Tensor, "B T N F"],
    value: Float[Tensor, "B T K V"],
    scale: Float[Tensor, "B T H L"],
    log_decay: Float[Tensor, "B T N"] | None,
    position: Int[Tensor, "B T"],
    segment: Int[Tensor, "B T"] | None,
    state: Float[Tensor, "B N L F V"],
    newest: Int[Tensor, " B"],
) -> tuple[Float[Tensor, "B T H V"], Float[Tensor, "B N L F V"]]:
    """Move each state to its level as seen from the token, decay it, add the token's pair to level 0, and read all levels."""
    heads, state_heads, levels = query.shape[2], key.shape[2], scale.shape[3]
    value = repeat_heads(value, state_heads)
    outputs = []
    for t in range(query.shape[1]):
        if segment is not None:
            before = segment[:, t - 1] if t else torch.zeros_like(segment[:, 0])
            state = state * (segment[:, t] == before)[:, None, None, None, None]
        moves = is_level(level_after(newest, position[:, t, None], levels)[:, 0], levels).to(state.dtype)
        state = torch.einsum("blm,bnlfv->bnmfv", moves, state)
        if log_decay is not None:
            state = state * log_decay[:, t].exp()[:, :, None, None, None]
        pair = key[:, t, :, None, :, None] * value[:, t, :, None, None, :]
        state = torch.cat((state[:, :, :1] + pair, state[:, :, 1:]), dim=2)
        newest = position[:, t]
        read = state.repeat_interleave(heads // state_heads, dim=1)
        outputs.append(torch.einsum("bhf,bhl,bhlfv->bhv", query[:, t], scale[:, t], read))
    return torch.stack(outputs, dim=1), state
