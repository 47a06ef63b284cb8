"""Chunks: one triangular system inside a chunk, the recurrence between chunks. The form of training and prefill on any device.

With G the decay summed from the chunk's first token, S the state that enters the chunk, and u_i = -r_i S_{i-1} the correction of
token i, all products of features weighted by the decay between their tokens:

    S_i = exp(G_i) S + Σ_{j≤i} exp(G_i - G_j) (k_jᵀ v_j + w_jᵀ u_j)
    (I + A) U = -B V - R S    with A_ij = r_i·w_j exp(G_{i-1} - G_j), B_ij = r_i·k_j exp(G_{i-1} - G_j) for j < i, else 0

and R_i = r_i exp(G_{i-1}). Both right-hand sides are solved at once, before S is known. A row r_i reads the state after the
previous token, so it has the weights of a query of that token, moved down by one row. Where w is the key, only v_j + u_j enters,
and (I + A) (V + U) = V - R S.

Every exponent is a sum of decays, at most 0. The products of features are weighted by ``by_feature``, however steep a decay is.
"""

from __future__ import annotations

import math
from itertools import repeat

from blocks.legend import Float, Int, Tensor, torch
from blocks.recurrences.by_feature import block_of, weigh
from blocks.recurrences.chunks import cut_documents, into_chunks, of_documents

CHUNK = 64
SPAN = 512
"""Tokens whose chunks are computed together, so that memory does not grow with T."""


def chunked(
    query: Float[Tensor, "B T H F"],
    key: Float[Tensor, "B T N F"],
    value: Float[Tensor, "B T K V"],
    read: Float[Tensor, "B T N F"],
    removed: Float[Tensor, "B T N F"] | None,
    log_decay: Tensor | None,
    segment: Int[Tensor, "B T"] | None,
    state: Float[Tensor, "B N F V"],
) -> tuple[Float[Tensor, "B T H V"], Float[Tensor, "B N F V"]]:
    """S_t = (exp(decay_t) - w_tᵀ r_t) S_{t-1} + k_tᵀ v_t and o_t = q_t S_t of any number of tokens, span by span."""
    outputs = []
    # The gradient of a split is one concatenation. Each slice would have a gradient of the whole length.
    columns = (query, key, value, read, _of_next_token(read), of_features(log_decay, key))
    removals = repeat(None) if removed is None else removed.split(SPAN, dim=1)
    documents = repeat(None) if segment is None else cut_documents(segment, SPAN)
    for q, k, v, r, following, decay, w, document in zip(
        *(states.split(SPAN, dim=1) for states in columns), removals, documents, strict=False
    ):
        output, state = _span(q, k, v, r, following, decay, w, document, state)
        outputs.append(output)
    return (outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=1)), state


def of_features(log_decay: Tensor | None, key: Float[Tensor, "B T N F"]) -> Float[Tensor, "B T N F"]:
    """Return the decay of each feature, whatever its rank."""
    if log_decay is None:
        return torch.zeros_like(key)
    return log_decay if log_decay.dim() == 4 else log_decay[..., None].expand_as(key)


def _of_next_token(states: Float[Tensor, "B T N F"]) -> Float[Tensor, "B T N F"]:
    return torch.cat((states[:, 1:], torch.zeros_like(states[:, :1])), dim=1)


def _span(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    read: Tensor,
    following: Tensor,
    log_decay: Tensor,
    removed: Tensor | None,
    segment: Tensor | None,
    state: Tensor,
) -> tuple[Tensor, Tensor]:
    """Compute one span in chunks. Further letters: n chunks of c tokens, R state heads a value head, Q query heads a state head."""
    length = query.shape[1]
    chunk = min(CHUNK, 1 << (length - 1).bit_length())
    count = math.ceil(length / chunk)
    heads, state_heads, key_heads = query.shape[2], key.shape[2], value.shape[2]
    reads, shares = heads // state_heads, state_heads // key_heads
    groups, order = (key_heads, shares), (0, 3, 1, 4, 2, 5)

    # B K n R … c …; the tokens that fill the last chunk have keys 0 and decay 0, and change nothing.
    values = into_chunks(value, count, chunk, (key_heads, 1), order)
    first = into_chunks(read, count, chunk, groups, order)[..., :1, :]
    block = block_of(log_decay, chunk)
    blocks = count * chunk // block
    queries = into_chunks(query, blocks, block, (key_heads, shares, reads), (0, 3, 1, 4, 5, 2, 6))
    asking = torch.cat((queries, into_chunks(following, blocks, block, groups, order)[:, :, :, :, None]), dim=4)
    keys, decay = into_chunks(key, blocks, block, groups, order), into_chunks(log_decay, blocks, block, groups, order)
    if removed is not None:  # two keys a token, as those of further heads
        keys = torch.cat((keys, into_chunks(removed, blocks, block, groups, order)), dim=3)
        asking, decay = torch.cat((asking, asking), dim=3), torch.cat((decay, decay), dim=3)
    parts = weigh(asking, keys, decay, block, chunk)
    weights, to_end = parts.weights, parts.to_end
    from_start, chunk_decay = parts.from_start[:, :, :, :shares], parts.chunk_decay[:, :, :, :shares].mT

    # Rows of r move down to the token that they belong to. The first one of a chunk reads the state that enters it.
    overlap = torch.nn.functional.pad(weights[:, :, :, :, -1, :-1], (0, 0, 1, 0))
    erasing = torch.cat((first, from_start[:, :, :, :, -1, :-1]), dim=-2)
    weights, from_start = weights[:, :, :, :, :-1], from_start[:, :, :, :, :-1]
    if segment is not None:
        document, before = of_documents(segment, count, chunk)
        same = (document[..., :, None] == document[..., None, :])[:, None, :, None]
        continues = (document == before[..., None])[:, None, :, None, :, None]
        overlap, weights = overlap * same, weights * same[..., None, :, :]
        erasing, from_start = erasing * continues, from_start * continues[..., None, :, :]
        to_end = to_end * same[..., -1, :, None]
        chunk_decay = chunk_decay * continues[..., -1:, :]

    if removed is None:
        offered = values.expand(-1, -1, -1, shares, -1, -1)
        pair_update: Tensor | None = None
    else:
        offered = -(overlap[:, :, :, :shares] @ values)
        pair_update = to_end[:, :, :, :shares].mT @ values
    # The solver assumes a diagonal of ones and never reads above it.
    system = overlap[:, :, :, -shares:]
    offered, erased = torch.linalg.solve_triangular(
        system, torch.cat((offered, erasing), dim=-1), upper=False, unitriangular=True
    ).split((value.shape[-1], key.shape[-1]), dim=-1)
    weights, from_start = weights.flatten(4, 5), from_start.flatten(4, 5)
    entered, earlier, state = _scan(
        from_start, offered, erased, to_end[:, :, :, -shares:], chunk_decay, pair_update, state.unflatten(1, (key_heads, shares))
    )
    output = weights[:, :, :, -shares:] @ entered + earlier
    if removed is not None:
        output = output + weights[:, :, :, :shares] @ values
    output = output.unflatten(4, (reads, chunk)).permute(0, 2, 5, 1, 3, 4, 6)
    return output.flatten(3, 5).flatten(1, 2)[:, :length], state.flatten(1, 2)


def _scan(
    query: Float[Tensor, "B K n R q F"],
    offered: Float[Tensor, "B K n R c V"],
    erased: Float[Tensor, "B K n R c F"],
    to_end: Float[Tensor, "B K n R c F"],
    chunk_decay: Float[Tensor, "B K n R F 1"],
    pair_update: Float[Tensor, "B K n R F V"] | None,
    state: Float[Tensor, "B K R F V"],
) -> tuple[Float[Tensor, "B K n R c V"], Float[Tensor, "B K n R q V"], Float[Tensor, "B K R F V"]]:
    """Return the corrected values of the tokens, given the state before the chunk; the outputs of that state for the chunk's
    queries; and the state after the last chunk. pair_update: the contribution of the chunk's own pairs at its end."""
    entered, earlier = [], []
    chunks = (states.unbind(2) for states in (query, offered, erased, to_end, chunk_decay))
    more = repeat(None) if pair_update is None else pair_update.unbind(2)
    for queries, values, rows, ends, decay, added in zip(*chunks, more, strict=False):
        earlier.append(queries @ state)
        entered.append(values - rows @ state)
        state = torch.addcmul(ends.mT @ entered[-1], state, decay)
        if added is not None:
            state = state + added
    return torch.stack(entered, dim=2), torch.stack(earlier, dim=2), state
