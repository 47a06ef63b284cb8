"""Chunks: quadratic inside a chunk, the recurrence between chunks. The form of training and prefill on any device.

Inside a chunk a pair's weight is q_i · k_j · exp(G_i - G_j), with G the decay summed from the chunk's first token; for a decay per
feature, ``blocks.recurrences.by_feature`` computes it.
"""

from __future__ import annotations

import math
from itertools import repeat

from blocks.legend import Float, Int, Tensor, torch
from blocks.recurrences.by_feature import block_of, weigh
from blocks.recurrences.chunks import cut_documents, decay_between, into_chunks, of_documents
from blocks.tensors import as_dtype, derives_by_hand, repeat_heads

CHUNK = 64
SPAN = 512
"""Tokens whose chunks are computed at once. Their intermediate tensors fit into the processor's cache, and memory does not grow
with T."""


def chunked(
    query: Float[Tensor, "B T H F"],
    key: Float[Tensor, "B T N F"],
    value: Float[Tensor, "B T K V"],
    log_decay: Float[Tensor, "B T N"] | Float[Tensor, "B T N F"] | None,
    segment: Int[Tensor, "B T"] | None,
    state: Float[Tensor, "B N F V"],
) -> tuple[Float[Tensor, "B T H V"], Float[Tensor, "B N F V"]]:
    """S_t = exp(decay_t) S_{t-1} + k_tᵀ v_t and o_t = q_t S_t of any number of tokens, span by span."""
    outputs = []
    if log_decay is None and derives_by_hand(query):
        return _walk(query, key, None, value, None, segment, state)
    # The gradient of a split is one concatenation; each slice would have a gradient of the whole length.
    queries, keys, values = (states.split(SPAN, dim=1) for states in (query, key, value))
    decays = repeat(None) if log_decay is None else log_decay.split(SPAN, dim=1)
    documents = repeat(None) if segment is None else cut_documents(segment, SPAN)
    for q, k, v, decay, document in zip(queries, keys, values, decays, documents, strict=False):
        output, state = _span(q, k, v, decay, document, state)
        outputs.append(output)
    return (outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=1)), state


def _span(
    query: Tensor, key: Tensor, value: Tensor, log_decay: Tensor | None, segment: Tensor | None, state: Tensor
) -> tuple[Tensor, Tensor]:
    """Compute one span in chunks. Further letters: n chunks of c tokens, R state heads a key head, Q query heads a state head."""
    length = query.shape[1]
    chunk = min(CHUNK, 1 << (length - 1).bit_length())
    count = math.ceil(length / chunk)
    heads, state_heads, key_heads = query.shape[2], key.shape[2], value.shape[2]
    reads, shares = heads // state_heads, state_heads // key_heads
    block = chunk if log_decay is None or log_decay.dim() == 3 else block_of(log_decay, chunk)
    blocks = count * chunk // block
    if log_decay is not None and log_decay.dim() == 4 and block == chunk and derives_by_hand(query):
        return _walk(*_remove_decay(query, key, log_decay, value, chunk), segment, state, chunk)

    # B K n R … c …: tensors that the heads of a group share are not copied; the heads become rows of one product.
    queries = into_chunks(query, blocks, block, (key_heads, shares, reads), (0, 3, 1, 4, 5, 2, 6))
    keys = into_chunks(key, blocks, block, (key_heads, shares), (0, 3, 1, 4, 2, 5))
    values = into_chunks(value, count, chunk, (key_heads,), (0, 3, 1, 2, 4))

    if log_decay is None:
        to_end, from_start, chunk_decay = keys, queries, None
        weights = queries.flatten(4, 5) @ keys.mT
        weights = weights.unflatten(4, (reads, chunk)).tril()
    elif log_decay.dim() == 3:
        decay = into_chunks(log_decay, count, chunk, (key_heads, shares), (0, 3, 1, 4, 2))
        between = decay_between(decay).exp().tril()
        weights = (queries.flatten(4, 5) @ keys.mT).unflatten(4, (reads, chunk)) * between[..., None, :, :]
        from_start = queries * decay.cumsum(4).exp()[..., None, :, None]
        to_end = keys * between[..., -1, :, None]
        chunk_decay = decay.sum(4).exp()[..., None, None]
    else:
        decay = into_chunks(log_decay, blocks, block, (key_heads, shares), (0, 3, 1, 4, 2, 5))
        parts = weigh(queries, keys, decay, block, chunk)
        weights, from_start, to_end, chunk_decay = parts.weights, parts.from_start, parts.to_end, parts.chunk_decay.mT

    continues = None
    if segment is not None:
        document, before = of_documents(segment, count, chunk)
        same = document[..., :, None] == document[..., None, :]
        weights = weights * same[:, None, :, None, None]
        from_start = from_start * (document == before[..., None])[:, None, :, None, None, :, None]
        to_end = to_end * (document == document[..., -1:])[:, None, :, None, :, None]
        continues = (document[..., -1] == before)[:, None, :, None, None, None]

    added = (to_end.mT.flatten(3, 4) @ values).unflatten(3, (shares, -1))
    earlier, state = scan(from_start.flatten(4, 5), added, chunk_decay, continues, state.unflatten(1, (key_heads, shares)))
    output = (weights.flatten(3, 5) @ values).unflatten(3, (shares, reads * chunk)) + earlier
    output = output.unflatten(4, (reads, chunk)).permute(0, 2, 5, 1, 3, 4, 6)
    return output.flatten(3, 5).flatten(1, 2)[:, :length], state.flatten(1, 2)


def _walk(
    query: Tensor,
    key: Tensor,
    end_keys: Tensor | None,
    value: Tensor,
    chunk_decay: Tensor | None,
    segment: Tensor | None,
    state: Tensor,
    chunk: int | None = None,
) -> tuple[Tensor, Tensor]:
    from blocks.recurrences.additive.gradients import chunks

    return chunks(query, key, end_keys, value, chunk_decay, segment, as_dtype(state, value.dtype), chunk or CHUNK)


def _remove_decay(
    query: Float[Tensor, "B T H F"], key: Float[Tensor, "B T N F"], log_decay: Float[Tensor, "B T N F"], value: Tensor, chunk: int
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Inputs of a recurrence without decay inside its chunks, where no feature decays below ``STEEPEST`` in one: queries after the
    decay since the chunk's first token, keys before it, keys as they are left at the end, values, and the decay of each chunk."""
    length, missing = log_decay.shape[1], -log_decay.shape[1] % chunk
    padded = torch.nn.functional.pad(log_decay, (0, 0, 0, 0, 0, missing)) if missing else log_decay
    total = padded.unflatten(1, (-1, chunk)).cumsum(2)
    passed, chunk_decay = total.flatten(1, 2)[:, :length].exp(), total[:, :, -1].exp()
    keys = key / passed
    end_keys = (
        torch.nn.functional.pad(keys, (0, 0, 0, 0, 0, missing)).unflatten(1, (-1, chunk)) * chunk_decay[:, :, None]
    ).flatten(1, 2)
    return query * repeat_heads(passed, query.shape[2]), keys, end_keys[:, :length], value, chunk_decay


def scan(
    query: Float[Tensor, "B K n R c F"],
    added: Float[Tensor, "B K n R F V"],
    chunk_decay: Tensor | None,
    continues: Tensor | None,
    state: Float[Tensor, "B K R F V"],
) -> tuple[Float[Tensor, "B K n R c V"], Float[Tensor, "B K R F V"]]:
    """Return the outputs of each chunk's queries for the state before the chunk, and the state after the last chunk."""
    state = as_dtype(state, added.dtype)
    if chunk_decay is None and continues is None and (torch.is_grad_enabled() or not added.is_cpu):
        # Without decay, one sum and one product have fewer backward steps, and fewer launches.
        sums = torch.cat((state[:, :, None], added), dim=2).cumsum(2)
        return query @ sums[:, :, :-1], sums[:, :, -1]
    decay = chunk_decay
    if continues is not None:
        decay = continues if chunk_decay is None else chunk_decay * continues
    outputs = []
    # The states of all chunks side by side, for one product, would be many times what their queries read.
    for index in range(added.shape[2]):
        outputs.append(query[:, :, index] @ state)
        new = added[:, :, index]
        state = state + new if decay is None else torch.addcmul(new, state, decay[:, :, index])
    return torch.stack(outputs, dim=2), state
