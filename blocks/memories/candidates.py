"""The candidates for a place in a cache in which each query head has its own pairs, over a block of tokens.

Their shape is B E H …. In memory the entries of a head are contiguous, because attention and reads of the state go head by
head.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from blocks.flow import Tokens
from blocks.legend import Bool, Float, Int, Shaped, Tensor, torch
from blocks.scores.base import LARGEST
from blocks.softmax import mask_bias
from blocks.tensors import accumulating, in_all_rows, repeat_heads, take

HeadEntries = dict[str, Tensor]
"""Pairs of each query head, the older first, B E H …: rotated key, value, position, convolved key if there is one, and the
numbers of each pair. The key mapped for the state below is computed once, when a pair enters."""


def by_heads(entries: Shaped[Tensor, "B E H ..."]) -> Shaped[Tensor, "B E H ..."]:
    """Return the entries with those of each head contiguous in memory."""
    return entries.transpose(1, 2).contiguous().transpose(1, 2)


def concatenate_by_heads(entries: Shaped[Tensor, "B E H ..."], later: Shaped[Tensor, "B M H ..."]) -> Shaped[Tensor, "B S H ..."]:
    """Concatenate entries and later ones, with those of each head contiguous in memory."""
    return torch.cat((entries.transpose(1, 2), later.transpose(1, 2)), dim=2).transpose(1, 2)


def select_by_heads(candidates: HeadEntries, index: Int[Tensor, "B M H"]) -> HeadEntries:
    """Apply ``select`` to entries that are contiguous per head. The result is, too."""
    index = index.transpose(1, 2)
    place = in_all_rows(index.flatten(0, 1), candidates["key"].shape[1]).flatten()
    return {name: _at_places_by_heads(entries, place, index) for name, entries in candidates.items()}


def _at_places_by_heads(
    entries: Shaped[Tensor, "B E H ..."], place: Int[Tensor, " n"], like: Int[Tensor, "B H M"]
) -> Shaped[Tensor, "B M H ..."]:
    """The entries at these places, counted head by head in all rows laid end to end."""
    return entries.transpose(1, 2).flatten(0, 2).index_select(0, place).unflatten(0, like.shape).transpose(1, 2)


def eviction_bias(
    candidates: HeadEntries,
    columns: Int[Tensor, "B t"],
    evictions: Int[Tensor, "B e"],
    max_per_token: int,
    eviction_number: Int[Tensor, "B E H"],
    tokens: Tokens,
) -> Float[Tensor, "B H t E"]:
    """Return the mask that is added to the logits of a block's tokens, 0 or -inf. A pair is visible from the eviction by which
    it enters the cache to the one by which it leaves.

    columns: of the tokens. evictions: the columns at which the last entries enter, ``max_per_token`` entries at each.
    eviction_number: the number of the eviction, from 1, by which each entry leaves; a larger number for entries that are kept.
    """
    evictions = evictions[:, ::max_per_token]
    passed = torch.arange(evictions.shape[1] + 1, device=columns.device)
    entered = passed[1:].repeat_interleave(max_per_token)
    entered = torch.nn.functional.pad(entered, (eviction_number.shape[1] - entered.shape[0], 0))
    eviction_number = eviction_number.masked_fill(candidates["position"] < 0, 0).transpose(1, 2)
    # The mask is the same for all tokens between two evictions.
    between = mask_bias(
        (entered <= passed[:, None]) & (passed[:, None] < eviction_number[:, :, None]), accumulating(candidates["value"].dtype)
    )
    bias = take(between.transpose(1, 2), (evictions[:, None] <= columns[..., None]).sum(-1)).transpose(1, 2)
    if tokens.segment is None:
        return bias
    same_document = candidates["segment"].transpose(1, 2)[:, :, None] == take(tokens.segment, columns)[:, None, :, None]
    return bias + mask_bias(same_document, bias.dtype)


def select(candidates: HeadEntries, index: Int[Tensor, "B M H"]) -> HeadEntries:
    """Return the chosen pairs of each head."""
    heads = torch.arange(index.shape[2], device=index.device)
    place = in_all_rows((index * index.shape[2] + heads).flatten(1), candidates["key"].shape[1] * index.shape[2]).flatten()
    return {name: _at_places(entries, place, index) for name, entries in candidates.items()}


def _at_places(
    entries: Shaped[Tensor, "B E H ..."], place: Int[Tensor, " n"], like: Int[Tensor, "B M H"]
) -> Shaped[Tensor, "B M H ..."]:
    """The entries at these places, counted entry by entry in all rows laid end to end."""
    return entries.flatten(0, 2).index_select(0, place).unflatten(0, like.shape)


# The errors of feature products: their difference from a pair's exact weights, summed over the queries that saw the pair in
# the window.
#
# LoLA, appendix D: each score of ``blocks.scores`` compares e = exp(q_t·k_i / √D) and f = φ(q_t)·φ(k_i). The sums only choose
# which pairs to keep, so they have no gradient. Exponents are limited to ``LARGEST``, whose squares fit in float32.


Error = Callable[[Tensor, Tensor], Tensor]
"""A function of the exact weights and of the products in their place, both B H t e."""
ROWS = 64


def error_sums(
    error_of: Error,
    features: tuple[Float[Tensor, "B T H F"], Float[Tensor, "B E N F"]],
    query: Float[Tensor, "B T H D"],
    key: Float[Tensor, "B E K D"],
    tokens: Tokens,
    visible: Callable[[slice, slice], Bool[Tensor, "B t e"]],
    *,
    logarithm: bool,
) -> Float[Tensor, "B E H"]:
    """Return each entry's sum over the tokens of the call that see it. Token t is entry E - T + t and sees at most E - T
    entries before its own. query and key are rotated. features: of queries and keys; logarithm: as logarithms."""
    with torch.no_grad():
        dtype, heads, length = accumulating(query.dtype), query.shape[2], query.shape[1]
        past_length = key.shape[1] - length
        keys = repeat_heads(key, heads).to(dtype)
        query_features, key_features = features[0].to(dtype), repeat_heads(features[1], heads).to(dtype)
        sums = key.new_zeros(*key.shape[:2], heads, dtype=dtype)
        for start in range(0, length, ROWS):
            rows, entries = slice(start, min(start + ROWS, length)), slice(start, min(start + ROWS, length) + past_length)
            logits = torch.einsum("bthd,behd->bhte", query[:, rows].to(dtype), keys[:, entries]) / math.sqrt(query.shape[-1])
            product = _product(query_features[:, rows], key_features[:, entries], logarithm)
            error = error_of(_weight(logits), product)
            seen = visible(rows, entries)
            if tokens.valid is not None:
                seen = seen & tokens.valid[:, rows, None]
            sums[:, entries] += error.masked_fill(~seen[:, None], 0.0).sum(2).transpose(1, 2)
        return sums


def _product(query: Float[Tensor, "B t H F"], key: Float[Tensor, "B e H F"], logarithm: bool) -> Float[Tensor, "B H t e"]:
    if not logarithm:
        return torch.einsum("bthf,behf->bhte", query, key).clamp(max=math.exp(LARGEST))
    query_maximum, key_maximum = query.amax(-1, keepdim=True), key.amax(-1, keepdim=True)
    product = torch.einsum("bthf,behf->bhte", (query - query_maximum).exp(), (key - key_maximum).exp())
    return _weight(product.log() + query_maximum.permute(0, 2, 1, 3) + key_maximum.permute(0, 2, 3, 1))


def _weight(logarithm: Tensor) -> Tensor:
    """Return exp of the logits. All limited logits have one result, whatever the machine's exp returns for ``LARGEST``."""
    return logarithm.exp().clamp(max=math.exp(LARGEST))
