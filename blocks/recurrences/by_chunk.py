"""What chunked recurrences with written-out gradients share: documents, and heads laid out as rows of products.

Forms that use this import it, and torch with it, at their first call.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from blocks.legend import Float, Int


@dataclass(frozen=True)
class DocumentFactors:
    """Which tokens share a document, as factors 0 and 1: with each other inside a chunk, with the token before the chunk, with the
    last token of the chunk; and the last token of a chunk with the token before it."""

    inside: Float[Tensor, "B T c"]
    """Of the query t of a chunk and its keys; keys beyond the end of the last chunk have any value."""
    entering: Float[Tensor, "B T"]
    leaving: Float[Tensor, "B T"]
    across: Float[Tensor, "B n"]


def document_factors(segment: Int[Tensor, "B T"], chunk: int, dtype: torch.dtype) -> DocumentFactors:
    """Return which tokens share a document. chunk: tokens in a chunk. dtype: of the factors."""
    batch, length = segment.shape
    starts = torch.arange(0, length, chunk, device=segment.device)
    before = torch.cat((segment.new_zeros(batch, 1), segment[:, starts[1:] - 1]), dim=1)
    last = segment[:, (starts + chunk).clamp(max=length) - 1]
    missing = len(starts) * chunk - length
    filled = torch.nn.functional.pad(segment, (0, missing)).unflatten(1, (-1, chunk))
    inside = (filled[..., :, None] == filled[..., None, :]).flatten(1, 2)[:, :length]
    entering, leaving = (filled == document[..., None] for document in (before, last))
    across = before == last
    inside, entering, leaving, across = (factors.to(dtype) for factors in (inside, entering, leaving, across))
    return DocumentFactors(inside, entering.flatten(1)[:, :length], leaving.flatten(1)[:, :length], across)


@dataclass(frozen=True)
class ChunkSizes:
    """The layout of a chunk's heads for products, which need three dimensions: N = K · R state heads, H = N · Q heads.

    With one row and no sharing, all of these are views.
    """

    batch: int
    length: int
    chunk: int
    key_heads: int
    state_heads: int
    heads: int

    @staticmethod
    def from_tensors(query: Tensor, key: Tensor, value: Tensor, chunk: int) -> ChunkSizes:
        return ChunkSizes(query.shape[0], query.shape[1], chunk, value.shape[2], key.shape[2], query.shape[2])

    def chunks(self) -> list[slice]:
        return [slice(start, min(start + self.chunk, self.length)) for start in range(0, self.length, self.chunk)]

    def repeat_values(self, values: Tensor, tokens: slice) -> Tensor:
        """Of B T K V: B·N, c, V, with a copy for each state head of a key head."""
        repeated = values[:, tokens].repeat_interleave(self.state_heads // self.key_heads, dim=2)
        return repeated.transpose(1, 2).reshape(self.batch * self.state_heads, -1, values.shape[-1])

    def put_sum(self, into: Tensor, tokens: slice, slopes: Tensor) -> None:
        """Write the sum of such copies into B T K V."""
        sums = slopes.view(self.batch, self.key_heads, -1, slopes.shape[1], slopes.shape[2]).sum(2)
        into[:, tokens].copy_(sums.transpose(1, 2))

    def over_reads(self, rows: Tensor) -> Tensor:
        """Of B·N, Q·c, x: the sum over the query heads of a state head, B·N, c, x."""
        return rows.unflatten(1, (self.heads // self.state_heads, -1)).sum(1)

    def group_keys(self, keys: Tensor, tokens: slice) -> Tensor:
        """Of B c N F: B·K, c, R·F, the state heads of a key head side by side."""
        grouped = keys.unflatten(2, (self.key_heads, -1)).flatten(3).transpose(1, 2)
        return grouped.reshape(self.batch * self.key_heads, grouped.shape[2], grouped.shape[3])

    def put_grouped(self, into: Tensor, tokens: slice, slopes: Tensor, *, add: bool) -> None:
        target = into[:, tokens].unflatten(2, (self.key_heads, -1))
        grouped = slopes.view(self.batch, self.key_heads, -1, target.shape[3], target.shape[4]).transpose(1, 2)
        if add:
            target.add_(grouped)
        else:
            target.copy_(grouped)

    def group_states(self, states: Tensor) -> Tensor:
        """Of B·N, F, V: B·K, R·F, V."""
        return states.view(self.batch * self.key_heads, -1, states.shape[-1])

    def query_factors(self, factors: Tensor) -> Tensor:
        """Of B c: a factor for each row of the queries."""
        rows = factors[:, None, None].expand(-1, self.state_heads, self.heads // self.state_heads, -1)
        return rows.reshape(self.batch * self.state_heads, -1, 1)

    def value_factors(self, factors: Tensor) -> Tensor:
        """Of B c: a factor for each row of the values."""
        return factors[:, None].expand(-1, self.key_heads, -1).reshape(self.batch * self.key_heads, -1, 1)

    def state_factors(self, factors: Tensor) -> Tensor:
        """Of B: a factor for each state."""
        return factors.repeat_interleave(self.state_heads)[:, None, None]


def mask_weights(weights: Tensor, tokens: slice, documents: DocumentFactors | None, sizes: ChunkSizes) -> Tensor:
    """In place: 0 where a key is later than the query, or of another document."""
    rows = weights.view(sizes.batch, -1, weights.shape[2], weights.shape[2])
    rows.mul_(lower_triangle(weights.shape[2], weights.dtype, weights.device))
    if documents is not None:
        rows.mul_(documents.inside[:, tokens, : weights.shape[2]][:, None])
    return weights


def lower_triangle(length: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.ones(length, length, dtype=dtype, device=device).tril_()


def ending_keys(keys: Tensor, tokens: slice, documents: DocumentFactors | None) -> Tensor:
    """Return the keys of a chunk as they are left at its end, of the document that it ends in: B c N F."""
    ends = keys[:, tokens]
    return ends if documents is None else ends * documents.leaving[:, tokens, None, None]
