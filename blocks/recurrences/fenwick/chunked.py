"""Chunks: quadratic inside a chunk, and the states of all levels between chunks."""

from __future__ import annotations

from blocks.legend import Float, Int, Tensor, torch
from blocks.recurrences.fenwick.levels import is_level, level_after, level_of
from blocks.tensors import repeat_heads

CHUNK = 64


def chunked(
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
    """Compute any number of tokens, chunk by chunk."""
    outputs, length = [], query.shape[1]
    document = torch.zeros_like(position) if segment is None else segment
    before = torch.zeros_like(newest)
    for start in range(0, length, CHUNK):
        part = slice(start, min(start + CHUNK, length))
        decay = None if log_decay is None else log_decay[:, part]
        inputs = (query[:, part], key[:, part], value[:, part], scale[:, part], decay, position[:, part], document[:, part])
        output, state = _chunk(*inputs, before, state, newest)
        outputs.append(output)
        before, newest = document[:, part.stop - 1], position[:, part.stop - 1]
    return torch.cat(outputs, dim=1), state


def _chunk(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    scale: Tensor,
    log_decay: Tensor | None,
    position: Int[Tensor, "B C"],
    document: Int[Tensor, "B C"],
    before: Int[Tensor, " B"],
    state: Tensor,
    newest: Int[Tensor, " B"],
) -> tuple[Tensor, Tensor]:
    """Compute one chunk. before: the document of the state."""
    (_, length, heads, _), state_heads, levels = query.shape, key.shape[2], scale.shape[3]
    shares = heads // state_heads
    value = repeat_heads(value, state_heads)
    total = key.new_zeros(key.shape[:3]) if log_decay is None else log_decay.cumsum(1)  # B C N

    # Inside the chunk: B N R C C, with R query heads of a state head.
    queries = query.unflatten(2, (state_heads, shares)).permute(0, 2, 3, 1, 4)
    logits = queries.flatten(2, 3) @ key.permute(0, 2, 3, 1)
    level = level_of(position[:, :, None], position[:, None], levels)
    factor = scale.transpose(1, 2).gather(3, level[:, None].expand(-1, heads, -1, -1)).unflatten(1, (state_heads, shares))
    since = (total[:, :, None] - total[:, None]).permute(0, 3, 1, 2)  # B N C C
    visible = torch.ones(length, length, dtype=torch.bool, device=key.device).tril() & (document[:, :, None] == document[:, None])
    since = since.masked_fill(~visible[:, None], -torch.inf).exp()
    weights = logits.unflatten(2, (shares, length)) * factor * since[:, :, None]
    inside = (weights.flatten(2, 3) @ value.transpose(1, 2)).unflatten(2, (shares, length))

    # The states of all levels, each with the factor of its level as seen from the query.
    moved = level_after(newest, position, levels)  # B C L
    factor = scale.transpose(1, 2).gather(3, moved[:, None].expand(-1, heads, -1, -1)).unflatten(1, (state_heads, shares))
    continues = (document == before[:, None])[..., None]  # B C 1
    passed = (total.exp() * continues).transpose(1, 2)[:, :, None, :, None]  # B N 1 C 1
    reads = (factor[..., None] * (queries * passed)[..., None, :]).flatten(4, 5)  # B N R C LF
    outside = (reads.flatten(2, 3) @ state.flatten(2, 3)).unflatten(2, (shares, length))
    output = (inside + outside).permute(0, 3, 1, 2, 4).flatten(2, 3)

    # The state after the chunk.
    moves = is_level(moved[:, -1], levels).to(state.dtype) * continues[:, -1, :, None]
    state = torch.einsum("blm,bnlfv->bnmfv", moves, state) * total[:, -1].exp()[:, :, None, None, None]
    entering = is_level(level[:, -1], levels).to(key.dtype)  # B C L
    left = since[:, :, -1, :, None] * key.transpose(1, 2)  # B N C F
    added = torch.einsum("bcl,bncf,bcnv->bnlfv", entering, left, value)
    return output, state + added
