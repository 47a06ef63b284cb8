"""Chunks of the additive recurrence with their gradients written out: it needs fewer passes over memory than PyTorch's own
derivative.

One chunk is computed after the other, and all heads together, so that the tensors of a chunk fit into the processor's cache. With S
the state that enters a chunk, A its weights (0 where the key is later than the query), w the decay of the state over the chunk:

    o = A V + Q S,    A = tril(Q Kᵀ),    S' = w S + Eᵀ V

E are the keys decayed to the end of the chunk; without decay, the keys themselves. Backward, from the last chunk to the first, with
dS the gradient of the state that leaves a chunk:

    dA = tril(dO Vᵀ),  dQ = dA K + dO Sᵀ,  dK = dAᵀ Q,  dE = V dSᵀ,  dV = Aᵀ dO + E dS,  dw = Σ dS ∘ S,  dS ← w dS + Qᵀ dO

This module imports torch: ``chunked`` imports it at its first use.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.amp import custom_bwd, custom_fwd
from torch.autograd.function import once_differentiable

from blocks.legend import Float, Int
from blocks.recurrences.by_chunk import ChunkSizes, DocumentFactors, document_factors, ending_keys, mask_weights
from blocks.tensors import put_rows, rows


def chunks(
    query: Float[Tensor, "B T H F"],
    key: Float[Tensor, "B T N F"],
    end_keys: Float[Tensor, "B T N F"] | None,
    value: Float[Tensor, "B T K V"],
    chunk_decay: Float[Tensor, "B n N F"] | None,
    segment: Int[Tensor, "B T"] | None,
    state: Float[Tensor, "B N F V"],
    chunk: int,
) -> tuple[Float[Tensor, "B T H V"], Float[Tensor, "B N F V"]]:
    """Return the recurrence's output and its last state. end_keys: E, where decay makes it another tensor than the keys.
    chunk_decay: w."""
    documents = None if segment is None else document_factors(segment, chunk, query.dtype)
    return _Chunks.apply(query, key, end_keys, value, chunk_decay, state, documents, chunk)


class _Chunks(torch.autograd.Function):
    @staticmethod
    @custom_fwd(device_type="cpu")
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        end_keys: Tensor | None,
        value: Tensor,
        chunk_decay: Tensor | None,
        state: Tensor,
        documents: DocumentFactors | None,
        chunk: int,
    ) -> tuple[Tensor, Tensor]:
        sizes = ChunkSizes.from_tensors(query, key, value, chunk)
        output = query.new_empty(*query.shape[:3], value.shape[-1])
        states, weights = [state.contiguous().flatten(0, 1)], []
        for index, tokens in enumerate(sizes.chunks()):
            queries, keys = (rows(states, tokens, sizes.state_heads) for states in (query, key))
            values = rows(value, tokens, sizes.key_heads)
            now = states[-1]
            weighed = mask_weights(queries @ keys.mT, tokens, documents, sizes)
            if documents is not None:
                queries = queries * sizes.query_factors(documents.entering[:, tokens])
            products = weighed.view(sizes.batch * sizes.key_heads, -1, keys.shape[1]) @ values
            put_rows(output, tokens, products.view(*queries.shape[:2], -1).baddbmm_(queries, now))
            ends = sizes.group_keys(ending_keys(key if end_keys is None else end_keys, tokens, documents), tokens)
            decayed_state = _decay_states(now, chunk_decay, documents, index, sizes)
            states.append(torch.baddbmm(sizes.group_states(decayed_state), ends.mT, values).view(now.shape))
            weights.append(weighed)
        ctx.sizes, ctx.documents, ctx.count = sizes, documents, len(weights)
        ctx.save_for_backward(query, key, end_keys, value, chunk_decay, *states[:-1], *weights)
        return output, states[-1].view(state.shape)

    @staticmethod
    @custom_bwd(device_type="cpu")
    @once_differentiable
    def backward(ctx: Any, to_output: Tensor, to_state: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        query, key, end_keys, value, chunk_decay, *others = ctx.saved_tensors
        states, weights = others[: ctx.count], others[ctx.count :]
        sizes, documents = ctx.sizes, ctx.documents
        wanted: dict[str, bool] = dict(
            zip(("query", "key", "end_keys", "value", "chunk_decay", "state"), ctx.needs_input_grad, strict=False)
        )
        keyed = wanted["key"] or wanted["end_keys"]
        to_query, to_key, to_end_keys, to_value, to_chunk_decay = (
            torch.empty_like(tensor, memory_format=torch.contiguous_format) if tensor is not None and wanted[name] else None
            for name, tensor in zip(wanted, (query, key, end_keys, value, chunk_decay), strict=False)
        )
        slope = to_state.contiguous().flatten(0, 1)
        for index, tokens in reversed(list(enumerate(sizes.chunks()))):
            queries, keys = (rows(states, tokens, sizes.state_heads) for states in (query, key))
            values = rows(value, tokens, sizes.key_heads)
            now, weighed, d_output = states[index], weights[index], rows(to_output, tokens, sizes.state_heads)
            as_shared = d_output.reshape(sizes.batch * sizes.key_heads, -1, d_output.shape[-1])
            entering = None if documents is None else sizes.query_factors(documents.entering[:, tokens])
            if to_query is not None or to_key is not None:
                to_weights = mask_weights((as_shared @ values.mT).view(weighed.shape), tokens, documents, sizes)
                if to_query is not None:
                    read = d_output if entering is None else d_output * entering
                    put_rows(to_query, tokens, (to_weights @ keys).baddbmm_(read, now.mT))
                if to_key is not None:
                    put_rows(to_key, tokens, to_weights.mT @ queries)
            slopes = sizes.group_states(slope)
            if keyed:
                d_ends = values @ slopes.mT
                if documents is not None:
                    d_ends = d_ends * sizes.value_factors(documents.leaving[:, tokens])
                target = to_key if end_keys is None else to_end_keys
                if target is not None:
                    sizes.put_grouped(target, tokens, d_ends, add=end_keys is None)
            if to_value is not None:
                ends = sizes.group_keys(ending_keys(key if end_keys is None else end_keys, tokens, documents), tokens)
                flat = weighed.view(sizes.batch * sizes.key_heads, -1, keys.shape[1])
                put_rows(to_value, tokens, (flat.mT @ as_shared).baddbmm_(ends, slopes))
            if to_chunk_decay is not None:
                d_decay = (slope * now).sum(-1)
                if documents is not None:
                    d_decay = d_decay * sizes.state_factors(documents.across[:, index])[..., 0]
                to_chunk_decay[:, index] = d_decay.view(to_chunk_decay[:, index].shape)
            reading = queries if entering is None else queries * entering
            slope = torch.baddbmm(_decay_states(slope, chunk_decay, documents, index, sizes), reading.mT, d_output)
        to_first = slope.view(to_state.shape) if wanted["state"] else None
        return to_query, to_key, to_end_keys, to_value, to_chunk_decay, to_first, None, None


def _decay_states(
    states: Tensor, chunk_decay: Tensor | None, documents: DocumentFactors | None, index: int, sizes: ChunkSizes
) -> Tensor:
    """What a chunk leaves of a state, or of its gradient."""
    if chunk_decay is not None:
        states = states * chunk_decay[:, index].flatten(0, 1)[..., None]
    return states if documents is None else states * sizes.state_factors(documents.across[:, index])
