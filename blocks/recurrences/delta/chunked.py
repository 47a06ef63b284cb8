"""Chunks: one triangular system inside a chunk, the recurrence between chunks. The form of training and prefill on any device.

With G the decay summed from the chunk's first token and S the state that enters the chunk, the rule is additive in the corrected
values u_i = β_i (v_i - k_i S_{i-1}), where S_{i-1} has decayed to token i:

    S_i = exp(G_i) S + Σ_{j≤i} exp(G_i - G_j) k_jᵀ u_j
    (I + A) U = β V - β exp(G) K S    with A_ij = β_i (k_i · k_j) exp(G_i - G_j) for j < i, else 0

Both right-hand sides are solved at once, before S is known: the UT transform of arXiv:2406.06484, with the decay of
arXiv:2412.06464. Every exponent is a sum of decays, at most 0, so that no decay is too strong. With a decay per feature (Kimi Delta
Attention, arXiv:2510.26692), G is a vector, and ``by_feature`` weights the products of features.
"""

from __future__ import annotations

import math
from itertools import repeat

from blocks.legend import Float, Int, Tensor, torch
from blocks.recurrences.by_feature import block_of, weigh
from blocks.recurrences.chunks import cut_documents, decay_between, into_chunks, of_documents
from blocks.tensors import as_dtype, derives_by_hand

CHUNK = 64
SPAN = 512
"""Tokens whose chunks are computed at once. Their intermediate tensors fit into the processor's cache, and memory does not grow
with T."""


def chunked(
    query: Float[Tensor, "B T H F"],
    key: Float[Tensor, "B T N F"],
    value: Float[Tensor, "B T K V"],
    rate: Float[Tensor, "B T N"],
    log_decay: Float[Tensor, "B T N"] | Float[Tensor, "B T N F"] | None,
    segment: Int[Tensor, "B T"] | None,
    state: Float[Tensor, "B N F V"],
) -> tuple[Float[Tensor, "B T H V"], Float[Tensor, "B N F V"]]:
    """S_t = (I - β_t k_tᵀ k_t) exp(decay_t) S_{t-1} + β_t k_tᵀ v_t and o_t = q_t S_t of any number of tokens, span by span."""
    if (log_decay is None or log_decay.dim() == 3) and derives_by_hand(query):
        from blocks.recurrences.delta.gradients import chunks

        return chunks(query, key, value, rate, log_decay, segment, as_dtype(state, query.dtype), CHUNK)
    outputs = []
    # The gradient of a split is one concatenation; each slice would have a gradient of the whole length.
    queries, keys, values, rates = (states.split(SPAN, dim=1) for states in (query, key, value, rate))
    decays = repeat(None) if log_decay is None else log_decay.split(SPAN, dim=1)
    documents = repeat(None) if segment is None else cut_documents(segment, SPAN)
    for q, k, v, r, decay, document in zip(queries, keys, values, rates, decays, documents, strict=False):
        output, state = _span(q, k, v, r, decay, document, state)
        outputs.append(output)
    return (outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=1)), state


def _span(
    query: Tensor, key: Tensor, value: Tensor, rate: Tensor, log_decay: Tensor | None, segment: Tensor | None, state: Tensor
) -> tuple[Tensor, Tensor]:
    """Compute one span in chunks. Further letters: n chunks of c tokens, R state heads a key head, Q query heads a state head."""
    length = query.shape[1]
    chunk = min(CHUNK, 1 << (length - 1).bit_length())
    count = math.ceil(length / chunk)
    heads, state_heads, key_heads = query.shape[2], key.shape[2], value.shape[2]
    reads, shares = heads // state_heads, state_heads // key_heads

    # B K n R … c …; the tokens that fill the last chunk have rate 0 and decay 0, and change nothing.
    values = into_chunks(value, count, chunk, (key_heads, 1), (0, 3, 1, 4, 2, 5))
    rates = into_chunks(rate, count, chunk, (key_heads, shares), (0, 3, 1, 4, 2))[..., None]
    block = chunk if log_decay is None or log_decay.dim() == 3 else block_of(log_decay, chunk)
    blocks = count * chunk // block
    queries = into_chunks(query, blocks, block, (key_heads, shares, reads), (0, 3, 1, 4, 5, 2, 6))
    keys = into_chunks(key, blocks, block, (key_heads, shares), (0, 3, 1, 4, 2, 5))
    # A key reads the keys before it like a query, so it is one more query.
    asking = torch.cat((queries, keys[:, :, :, :, None]), dim=4)

    # Products of features times what is left at token i of what token j entered (0 where j is later), and what is left of the
    # state that entered the chunk, and at its end.
    if log_decay is None or log_decay.dim() == 3:
        between, survives = query.new_ones(chunk, chunk).tril(), query.new_ones(1, 1, count, 1, chunk, 1)
        if log_decay is not None:
            decay = into_chunks(log_decay, count, chunk, (key_heads, shares), (0, 3, 1, 4, 2))
            between = decay_between(decay).exp().tril()
            survives = decay.cumsum(4).exp()[..., None]
        weights = (asking.flatten(4, 5) @ keys.mT).unflatten(4, (reads + 1, chunk)) * between[..., None, :, :]
        from_start, chunk_decay = asking * survives[..., None, :, :], survives[..., -1:, :]
        to_end = keys * between[..., -1, :, None]
    else:
        decay = into_chunks(log_decay, blocks, block, (key_heads, shares), (0, 3, 1, 4, 2, 5))
        parts = weigh(asking, keys, decay, block, chunk)
        weights, from_start, to_end, chunk_decay = parts.weights, parts.from_start, parts.to_end, parts.chunk_decay.mT
    if segment is not None:
        document, before = of_documents(segment, count, chunk)
        same = document[..., :, None] == document[..., None, :]
        continues = (document == before[..., None])[:, None, :, None]
        weights = weights * same[:, None, :, None, None]
        from_start = from_start * continues[..., None, :, None]
        to_end = to_end * same[:, None, :, None, -1, :, None]
        chunk_decay = chunk_decay * continues[..., -1:, None]

    # The solver assumes a diagonal of ones and never reads above it.
    overlap, erasing = rates * weights[:, :, :, :, -1], rates * from_start[:, :, :, :, -1]
    sides = torch.cat((rates * values, erasing), dim=-1)
    offered, erased = torch.linalg.solve_triangular(overlap, sides, upper=False, unitriangular=True).split(
        (value.shape[-1], key.shape[-1]), dim=-1
    )
    state = state.unflatten(1, (key_heads, shares))
    weights, from_start = (factors[:, :, :, :, :-1].flatten(4, 5) for factors in (weights, from_start))
    entered, earlier, state = _scan(from_start, offered, erased, to_end, chunk_decay, state)
    output = weights @ entered + earlier
    output = output.unflatten(4, (reads, chunk)).permute(0, 2, 5, 1, 3, 4, 6)
    return output.flatten(3, 5).flatten(1, 2)[:, :length], state.flatten(1, 2)


def _scan(
    query: Float[Tensor, "B K n R q F"],
    offered: Float[Tensor, "B K n R c V"],
    erased: Float[Tensor, "B K n R c F"],
    to_end: Float[Tensor, "B K n R c F"],
    chunk_decay: Float[Tensor, "_ _ n _ _ 1"],
    state: Float[Tensor, "B K R F V"],
) -> tuple[Float[Tensor, "B K n R c V"], Float[Tensor, "B K n R q V"], Float[Tensor, "B K R F V"]]:
    """Return the corrected values of the tokens, given the state before the chunk; the outputs of that state for the chunk's
    queries; and the state after."""
    entered, earlier = [], []
    chunks = zip(*(states.unbind(2) for states in (query, offered, erased, to_end, chunk_decay)), strict=True)
    for asks, values, keys, ends, decay in chunks:
        earlier.append(asks @ state)
        entered.append(values - keys @ state)
        state = torch.addcmul(ends.mT @ entered[-1], state, decay)
    return torch.stack(entered, dim=2), torch.stack(earlier, dim=2), state
