"""Chunks of the additive recurrence with their gradients written out: fewer passes over memory than PyTorch's own derivative takes.

One chunk is computed after the other, and all heads together, so that what a chunk needs stays near the processor. With S the state
that enters a chunk, A its weights (0 where the key is later than the query), w what decay leaves of the state over the chunk:

    o = A V + Q S,    A = tril(Q Kᵀ),    S' = w S + Eᵀ V

E are the keys as they are left at the end of the chunk: the keys themselves, where nothing decays. Backward, from the last chunk to
the first, with dS the gradient of the state that leaves a chunk:

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
from blocks.recurrences.by_chunk import ChunkSizes, DocumentFactors, documents_of, ending_keys, mask_weights


def chunks(
    query: Float[Tensor, "B T H F"],
    key: Float[Tensor, "B T N F"],
    left: Float[Tensor, "B T N F"] | None,
    value: Float[Tensor, "B T K V"],
    whole: Float[Tensor, "B n N F"] | None,
    segment: Int[Tensor, "B T"] | None,
    state: Float[Tensor, "B N F V"],
    chunk: int,
) -> tuple[Float[Tensor, "B T H V"], Float[Tensor, "B N F V"]]:
    """The recurrence's output and its last state. left: E, where decay makes it another tensor than the keys; whole: w."""
    documents = None if segment is None else documents_of(segment, chunk, query.dtype)
    return _Chunks.apply(query, key, left, value, whole, state, documents, chunk)


class _Chunks(torch.autograd.Function):
    @staticmethod
    @custom_fwd(device_type="cpu")
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        left: Tensor | None,
        value: Tensor,
        whole: Tensor | None,
        state: Tensor,
        documents: DocumentFactors | None,
        chunk: int,
    ) -> tuple[Tensor, Tensor]:
        sizes = ChunkSizes.of(query, key, value, chunk)
        output = query.new_empty(*query.shape[:3], value.shape[-1])
        states, weights = [state.contiguous().flatten(0, 1)], []
        for index, tokens in enumerate(sizes.chunks()):
            asked, keys, values = sizes.asked(query, tokens), sizes.own(key, tokens), sizes.shared(value, tokens)
            now = states[-1]
            weighed = mask_weights(asked @ keys.mT, tokens, documents, sizes)
            if documents is not None:
                asked = asked * sizes.of_rows(documents.entering[:, tokens])
            answer = weighed.view(sizes.batch * sizes.key_heads, -1, keys.shape[1]) @ values
            sizes.put(output, tokens, answer.view(*asked.shape[:2], -1).baddbmm_(asked, now))
            ends = sizes.beside(ending_keys(key if left is None else left, tokens, documents), tokens)
            kept = _kept(now, whole, documents, index, sizes)
            states.append(torch.baddbmm(sizes.of_keys(kept), ends.mT, values).view(now.shape))
            weights.append(weighed)
        ctx.sizes, ctx.documents, ctx.count = sizes, documents, len(weights)
        ctx.save_for_backward(query, key, left, value, whole, *states[:-1], *weights)
        return output, states[-1].view(state.shape)

    @staticmethod
    @custom_bwd(device_type="cpu")
    @once_differentiable
    def backward(ctx: Any, to_output: Tensor, to_state: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        query, key, left, value, whole, *rest = ctx.saved_tensors
        states, weights = rest[: ctx.count], rest[ctx.count :]
        sizes, documents = ctx.sizes, ctx.documents
        wanted: dict[str, bool] = dict(zip(("query", "key", "left", "value", "whole", "state"), ctx.needs_input_grad, strict=False))
        keyed = wanted["key"] or wanted["left"]
        to_query, to_key, to_left, to_value, to_whole = (
            torch.empty_like(of, memory_format=torch.contiguous_format) if of is not None and wanted[name] else None
            for name, of in (("query", query), ("key", key), ("left", left), ("value", value), ("whole", whole))
        )
        slope = to_state.contiguous().flatten(0, 1)
        for index, tokens in reversed(list(enumerate(sizes.chunks()))):
            asked, keys, values = sizes.asked(query, tokens), sizes.own(key, tokens), sizes.shared(value, tokens)
            now, weighed, given = states[index], weights[index], sizes.asked(to_output, tokens)
            as_shared = given.reshape(sizes.batch * sizes.key_heads, -1, given.shape[-1])
            entering = None if documents is None else sizes.of_rows(documents.entering[:, tokens])
            if to_query is not None or to_key is not None:
                to_weights = mask_weights((as_shared @ values.mT).view(weighed.shape), tokens, documents, sizes)
                if to_query is not None:
                    read = given if entering is None else given * entering
                    sizes.put(to_query, tokens, (to_weights @ keys).baddbmm_(read, now.mT))
                if to_key is not None:
                    sizes.put_own(to_key, tokens, to_weights.mT @ asked)
            slopes = sizes.of_keys(slope)
            if keyed:
                found = values @ slopes.mT
                if documents is not None:
                    found = found * sizes.of_keys_rows(documents.leaving[:, tokens])
                target = to_key if left is None else to_left
                if target is not None:
                    sizes.put_beside(target, tokens, found, add=left is None)
            if to_value is not None:
                ends = sizes.beside(ending_keys(key if left is None else left, tokens, documents), tokens)
                flat = weighed.view(sizes.batch * sizes.key_heads, -1, keys.shape[1])
                sizes.put_shared(to_value, tokens, (flat.mT @ as_shared).baddbmm_(ends, slopes))
            if to_whole is not None:
                found = (slope * now).sum(-1)
                if documents is not None:
                    found = found * sizes.of_states(documents.across[:, index])[..., 0]
                to_whole[:, index] = found.view(to_whole[:, index].shape)
            reading = asked if entering is None else asked * entering
            slope = torch.baddbmm(_kept(slope, whole, documents, index, sizes), reading.mT, given)
        to_first = slope.view(to_state.shape) if wanted["state"] else None
        return to_query, to_key, to_left, to_value, to_whole, to_first, None, None


def _kept(states: Tensor, whole: Tensor | None, documents: DocumentFactors | None, index: int, sizes: ChunkSizes) -> Tensor:
    """What a chunk leaves of a state, or of its gradient."""
    if whole is not None:
        states = states * whole[:, index].flatten(0, 1)[..., None]
    return states if documents is None else states * sizes.of_states(documents.across[:, index])
