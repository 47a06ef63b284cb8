"""Chunks of the delta rule with their gradients written out: it needs fewer passes over memory than PyTorch's own derivative.

One chunk is computed after the other, and all heads together, so that the tensors of a chunk fit into the processor's cache. With S
the state that enters a chunk, G the logarithm of the decay since its first token, E = exp(G), D_ij = exp(G_i - G_j) for j ≤ i and
else 0, W = D ∘ Q Kᵀ and A = β ∘ D ∘ K Kᵀ below the diagonal:

    U = (I + A)⁻¹ R,  R = β ∘ (V - E ∘ K S),    o = E ∘ Q S + W U,    S' = E_c S + (L ∘ K)ᵀ U  with  L_i = exp(G_c - G_i)

Since S is known when a chunk is computed, the system is solved for the columns of V alone. Backward, from the last chunk to the
first, with dS the gradient of the state that leaves a chunk:

    dU = Wᵀ dO + L ∘ K dS,  dR = (I + A)⁻ᵀ dU,  dA = -dR Uᵀ,  dW = dO Uᵀ,  dV = β ∘ dR
    X = β ∘ D ∘ dA below the diagonal,  Y = D ∘ dW,  P = -E ∘ β ∘ dR,  O = E ∘ dO
    dQ = O Sᵀ + Y K,   dK = P Sᵀ + Yᵀ Q + (X + Xᵀ) K + L ∘ U dSᵀ,   dS ← E_c dS + Qᵀ O + Kᵀ P

A decay affects all later tokens of its chunk, and its gradient is a sum over them. This module imports torch: ``chunked`` imports
it at its first use.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.amp import custom_bwd, custom_fwd
from torch.autograd.function import once_differentiable

from blocks.legend import Float, Int
from blocks.recurrences.by_chunk import ChunkSizes, DocumentFactors, document_factors, lower_triangle
from blocks.tensors import put_rows, rows

STEEPEST = -1e4
"""The smallest decay of one token. A smaller one is also 0 in float32, and sums and differences of such numbers are finite."""


def chunks(
    query: Float[Tensor, "B T H F"],
    key: Float[Tensor, "B T N F"],
    value: Float[Tensor, "B T K V"],
    rate: Float[Tensor, "B T N"],
    log_decay: Float[Tensor, "B T N"] | None,
    segment: Int[Tensor, "B T"] | None,
    state: Float[Tensor, "B N F V"],
    chunk: int,
) -> tuple[Float[Tensor, "B T H V"], Float[Tensor, "B N F V"]]:
    """Return the rule's output and its last state."""
    documents = None if segment is None else document_factors(segment, chunk, query.dtype)
    return _Chunks.apply(query, key, value, rate, log_decay, state, documents, chunk)


class _Weights:
    """The factors of a chunk's products, from decays and documents: B·N, c, 1; ``between`` B·N, c, c; ``chunk_decay`` B·N, 1, 1."""

    def __init__(
        self,
        log_decay: Tensor | None,
        documents: DocumentFactors | None,
        index: int,
        tokens: slice,
        sizes: ChunkSizes,
        triangles: tuple[Tensor, Tensor],
    ) -> None:
        length = tokens.stop - tokens.start
        self.passed: Tensor | None = None
        lower, later = (triangle[:length, :length] for triangle in triangles)
        self.lower, self.later = lower, later
        if log_decay is None:
            self.between = lower.expand(1, -1, -1)
            self.from_start = self.to_end = self.chunk_decay = lower.new_ones(1, 1, 1)
        else:
            decay = rows(log_decay[..., None].clamp(min=STEEPEST), tokens, sizes.state_heads)
            # Summed, since the difference of two long sums would lose what is small: at [i, j] the decay after j up to i.
            sums, total = lower @ (decay * later), decay.cumsum(1)
            self.to_end, self.from_start, self.chunk_decay = sums[:, -1, :, None].exp(), total.exp(), total[:, -1:].exp()
            self.between = sums.exp_().mul_(lower)
            self.passed = log_decay[:, tokens] >= STEEPEST
        if documents is not None:
            inside = documents.inside[:, tokens, :length].repeat_interleave(sizes.state_heads, dim=0)
            entering, leaving = (
                factors[:, tokens].repeat_interleave(sizes.state_heads, dim=0)[..., None]
                for factors in (documents.entering, documents.leaving)
            )
            self.between, self.chunk_decay = (
                self.between * inside,
                self.chunk_decay * sizes.state_factors(documents.across[:, index]),
            )
            self.from_start, self.to_end = self.from_start * entering, self.to_end * leaving

    def reads(self, sizes: ChunkSizes) -> Tensor:
        """Return ``from_start`` for each row, if needed."""
        return self.from_start.repeat(1, sizes.heads // sizes.state_heads, 1) if self.from_start.shape[1] > 1 else self.from_start

    def slope(self, between: Tensor, from_start: Tensor, to_end: Tensor, chunk_decay: Tensor) -> Tensor:
        """Return the gradient of the logarithms, B·N, c, 1, from those of the numbers, each times its number."""
        after = self.lower.mT @ torch.cat((between, from_start), dim=2)
        inside = (after[:, :, :-1] * self.later).sum(2, keepdim=True)
        return inside + after[:, :, -1:] + self.later @ to_end + chunk_decay


class _Chunks(torch.autograd.Function):
    @staticmethod
    @custom_fwd(device_type="cpu")
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        rate: Tensor,
        log_decay: Tensor | None,
        state: Tensor,
        documents: DocumentFactors | None,
        chunk: int,
    ) -> tuple[Tensor, Tensor]:
        sizes = ChunkSizes.from_tensors(query, key, value, chunk)
        output = query.new_empty(*query.shape[:3], value.shape[-1])
        triangles = _triangles(chunk, query)
        states, saved = [state.contiguous().flatten(0, 1)], []
        for index, tokens in enumerate(sizes.chunks()):
            queries, keys = (rows(states, tokens, sizes.state_heads) for states in (query, key))
            values = sizes.repeat_values(value, tokens)
            rates = rows(rate[..., None], tokens, sizes.state_heads)
            weights, now = _Weights(log_decay, documents, index, tokens, sizes, triangles), states[-1]
            overlap = (keys @ keys.mT).mul_(weights.between).mul_(rates)
            missing = values - (keys @ now) * weights.from_start
            entered = _solve(overlap, rates * missing, transposed=False)
            weighed = _between(queries @ keys.mT, weights)
            products = (queries @ now).mul_(weights.reads(sizes)).baddbmm_(weighed, entered)
            put_rows(output, tokens, products)
            states.append((now * weights.chunk_decay).baddbmm_((keys * weights.to_end).mT, entered))
            saved += [weighed, overlap, entered, missing]
        ctx.sizes, ctx.documents, ctx.count = sizes, documents, len(states) - 1
        ctx.save_for_backward(query, key, value, rate, log_decay, *states[:-1], *saved)
        return output, states[-1].view(state.shape)

    @staticmethod
    @custom_bwd(device_type="cpu")
    @once_differentiable
    def backward(ctx: Any, to_output: Tensor, to_state: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        query, key, value, rate, log_decay, *others = ctx.saved_tensors
        sizes, documents, states, saved = ctx.sizes, ctx.documents, others[: ctx.count], others[ctx.count :]
        gradients = [
            torch.empty_like(tensor, memory_format=torch.contiguous_format) if tensor is not None and needed else None
            for tensor, needed in zip((query, key, value, rate, log_decay), ctx.needs_input_grad, strict=False)
        ]
        to_query, to_key, to_value, to_rate, to_decay = gradients
        triangles = _triangles(sizes.chunk, query)
        slope = to_state.contiguous().flatten(0, 1)
        for index, tokens in reversed(list(enumerate(sizes.chunks()))):
            queries, keys = rows(query, tokens, sizes.state_heads), rows(key, tokens, sizes.state_heads)
            rates, d_output = rows(rate[..., None], tokens, sizes.state_heads), rows(to_output, tokens, sizes.state_heads)
            weighed, overlap, entered, missing = saved[4 * index : 4 * index + 4]
            weights, now = _Weights(log_decay, documents, index, tokens, sizes, triangles), states[index]
            ends, read = keys * weights.to_end, d_output * weights.reads(sizes)
            to_entered = (weighed.mT @ d_output).baddbmm_(ends, slope)
            to_side = _solve(overlap, to_entered, transposed=True)
            # The solver assumes a diagonal of ones, so neither the diagonal nor the part above it has a gradient.
            to_overlap = (to_side @ entered.mT).neg_().tril_(-1)
            written = to_side * rates
            to_recalled = (written * weights.from_start).neg_()
            if to_value is not None:
                sizes.put_sum(to_value, tokens, written)
            moved = to_overlap * overlap
            if to_rate is not None:
                # Where a rate is 0, its row of the overlap is 0, too.
                slopes = (to_overlap * (keys @ keys.mT).mul_(weights.between)).sum(2, keepdim=True)
                put_rows(to_rate[..., None], tokens, slopes.add_((to_side * missing).sum(2, keepdim=True)))
            to_weighed = d_output @ entered.mT
            if to_decay is not None:
                assert weights.passed is not None
                between = sizes.over_reads(to_weighed * weighed) + moved
                from_start = sizes.over_reads((read * (queries @ now)).sum(2, keepdim=True)) + (to_recalled * (keys @ now)).sum(
                    2, keepdim=True
                )
                to_end = (ends * (entered @ slope.mT)).sum(2, keepdim=True)
                chunk_decay = (slope * now).sum((1, 2), keepdim=True) * weights.chunk_decay
                put_rows(to_decay[..., None], tokens, weights.slope(between, from_start, to_end, chunk_decay))
                to_decay[:, tokens].mul_(weights.passed)
            if to_query is not None or to_key is not None:
                to_products = _between(to_weighed, weights)
                if to_query is not None:
                    put_rows(to_query, tokens, (to_products @ keys).baddbmm_(read, now.mT))
                if to_key is not None:
                    both = to_overlap.mul_(weights.between).mul_(rates)
                    slopes = (to_recalled @ now.mT).baddbmm_(to_products.mT, queries).baddbmm_(both + both.mT, keys)
                    put_rows(to_key, tokens, slopes.addcmul_(entered @ slope.mT, weights.to_end))
            slope = (slope * weights.chunk_decay).baddbmm_(queries.mT, read).baddbmm_(keys.mT, to_recalled)
        return (*gradients, slope.view(to_state.shape) if ctx.needs_input_grad[5] else None, None, None)


def _triangles(chunk: int, like: Tensor) -> tuple[Tensor, Tensor]:
    """Ones from the diagonal down, and below it."""
    lower = lower_triangle(chunk, like.dtype, like.device)
    return lower, lower.tril(-1)


def _between(products: Tensor, weights: _Weights) -> Tensor:
    """In place: products of queries and keys, B·N Q·c c, times what is left of each key at each query."""
    length = products.shape[2]
    products.view(products.shape[0], -1, length, length).mul_(weights.between[:, None])
    return products


def _solve(overlap: Tensor, sides: Tensor, *, transposed: bool) -> Tensor:
    """(I + A)⁻¹ X, or (I + A)⁻ᵀ X, where A is the overlap below its diagonal."""
    matrix = overlap.mT if transposed else overlap
    return torch.linalg.solve_triangular(matrix, sides, upper=transposed, unitriangular=True)
