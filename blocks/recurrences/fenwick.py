"""The log-linear recurrence: the past in a number of states that grows with the logarithm of its length, after Fenwick's tree
(Guo et al. 2025, arXiv:2506.04761).

A pair at position s is in level ℓ of a query at position t: level 0 for s = t, else the number of binary digits of t xor s. Levels
so cover 1, 1, 2, 4, 8, … positions, the nearest first. The last level has all older pairs, too. Each query has its own factor λ of
a level:

    o_t = q_t Σ_ℓ λ_t^ℓ S_t^ℓ,  S_t^ℓ = Σ_{s in level ℓ of t} (α_{s+1} … α_t) k_sᵀ v_s

With λ = 1 this is the additive recurrence. All forms have the same arguments and results:

    query      B T H F     head h reads state head h // (H // N)
    key        B T N F     0 where a token has no pair
    value      B T K V     state head n reads the value of key head n // (N // K)
    scale      B T H L     λ
    log_decay  None (no decay) or B T N, at most 0
    position   B T         of each token in its document; of a token of padding, that of the token before
    segment    B T, not decreasing: the document of each token; 0 continues ``state``. None: all do
    state      B N L F V
    newest     B           the position of the newest token in ``state``, -1 for none
    returns    output B T H V, and the state after the last token
"""

from __future__ import annotations

from blocks.legend import Bool, Float, Int, Tensor, torch
from blocks.operation import REFERENCE, TORCH, Form
from blocks.tensors import repeat_heads


def is_level(level: Int[Tensor, "*rest"], levels: int) -> Bool[Tensor, "*rest L"]:
    """Return a mask of each level. ``torch.nn.functional.one_hot`` reads numbers on the host."""
    return level[..., None] == torch.arange(levels, device=level.device)


def level_of(later: Tensor, earlier: Tensor, levels: int) -> Tensor:
    """Return the level, seen from one position, of a pair at an earlier or equal position. Both are int64, and are broadcast."""
    # frexp is exact for integers below 2**53, and its exponent is the number of binary digits.
    return torch.frexp((later ^ earlier).double()).exponent.clamp(max=levels - 1).long()


def level_after(newest: Int[Tensor, " B"], later: Int[Tensor, "B T"], levels: int) -> Int[Tensor, "B T L"]:
    """Return the level, seen from later positions, of each level of a state. newest: the newest position of the state, -1 for none,
    whose levels are empty."""
    level = torch.arange(levels, device=newest.device)
    # The positions of a level share all binary digits from ``level - 1`` on, and that digit is not the newest position's.
    digit = (level - 1).clamp(min=0)
    member = ((newest.clamp(min=0)[:, None] >> digit) ^ (level > 0).long()) << digit  # B L
    # A later position is never in a lower level, and the last level has no single digit that its positions share.
    return torch.maximum(level_of(later[..., None], member[:, None], levels), level).masked_fill(level == levels - 1, levels - 1)


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
    end_keys = since[:, :, -1, :, None] * key.transpose(1, 2)  # B N C F
    added = torch.einsum("bcl,bncf,bcnv->bnlfv", entering, end_keys, value)
    return output, state + added


DECAY_RANKS = frozenset({"none", "head"})
FORMS: tuple[Form, ...] = (
    Form(REFERENCE, "one token after the other", naive),
    Form(TORCH, "one step of the recurrence", naive, decode=True),
    Form(TORCH, "chunks of 64, each with the states of all levels", chunked),
)
