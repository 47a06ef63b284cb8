"""Pairs that are evicted in groups, on a state without decay: between two evictions every token reads the same state.

A group of pairs is added to the state as one product. In the chunk of tokens in which the group is evicted, tokens before it read
the state that enters the chunk, and the others that state and the group. No query is multiplied by single pairs, so nothing is
quadratic in the length of a chunk.
"""

from __future__ import annotations

import math
from itertools import repeat

from blocks.legend import Float, Int, Tensor, torch
from blocks.recurrences.additive.chunked import SPAN, scan
from blocks.recurrences.chunks import cut_documents, into_chunks, of_documents


def grouped(
    query: Float[Tensor, "B T H F"],
    key: Float[Tensor, "B E N F"],
    value: Float[Tensor, "B E K V"],
    log_decay: None,
    segment: Int[Tensor, "B T"] | None,
    state: Float[Tensor, "B N F V"],
    *,
    arrival: Int[Tensor, "B E"],
    size: int,
) -> tuple[Float[Tensor, "B T H V"], Float[Tensor, "B N F V"]]:
    """Groups of ``size`` pairs, the j-th at one token of the j-th chunk of so many tokens; the others as in the recurrence."""
    span, outputs = size * max(1, SPAN // size), []
    place = arrival[:, ::size] % size
    queries, keys, values = (states.split(span, dim=1) for states in (query, key, value))
    documents = repeat(None) if segment is None else cut_documents(segment, span)
    for q, k, v, evictions, document in zip(queries, keys, values, place.split(span // size, dim=1), documents, strict=False):
        output, state = _span(q, k, v, evictions, document, state)
        outputs.append(output)
    return torch.cat(outputs, dim=1), state


def _span(
    query: Tensor, key: Tensor, value: Tensor, evictions: Int[Tensor, "B n"], segment: Tensor | None, state: Tensor
) -> tuple[Tensor, Tensor]:
    """Compute one span in chunks. Further letters: n chunks of c tokens, R state heads a key head, Q query heads a state head."""
    length, (heads, state_heads, key_heads) = query.shape[1], (states.shape[2] for states in (query, key, value))
    count, chunk = evictions.shape[1], math.ceil(key.shape[1] / evictions.shape[1])
    reads, shares = heads // state_heads, state_heads // key_heads
    queries = into_chunks(query, count, chunk, (key_heads, shares, reads), (0, 3, 1, 4, 5, 2, 6)).flatten(4, 5)
    keys = into_chunks(key, count, chunk, (key_heads, shares), (0, 3, 1, 4, 2, 5))
    values = into_chunks(value, count, chunk, (key_heads,), (0, 3, 1, 2, 4))
    group = (keys.mT.flatten(3, 4) @ values).unflatten(3, (shares, -1))

    asks = torch.arange(chunk, device=query.device) >= evictions[..., None]
    added, continues, enters = group, None, None
    if segment is not None:
        document, before = of_documents(segment, count, chunk)
        evicting = document.gather(2, evictions[..., None])
        asks, enters = asks & (document == evicting), document == before[..., None]
        added = group * (document[..., -1:] == evicting)[:, None, :, None, None]
        continues = (document[..., -1] == before)[:, None, :, None, None, None]
    earlier, state = scan(queries, added, None, continues, state.unflatten(1, (key_heads, shares)))

    def mask_rows(states: Tensor, tokens: Tensor | None) -> Tensor:
        states = states.unflatten(4, (reads, chunk))
        return states if tokens is None else states * tokens[:, None, :, None, None, :, None]

    output = mask_rows(earlier, enters) + mask_rows(queries @ group, asks)
    return output.permute(0, 2, 5, 1, 3, 4, 6).flatten(3, 5).flatten(1, 2)[:, :length], state.flatten(1, 2)
