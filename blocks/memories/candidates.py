"""The candidates for a place in a cache in which each query head has its own pairs, over a block of tokens.

Their shape is B E H …. In memory the entries of a head are contiguous, because attention and reads of the state go head by
head.
"""

from __future__ import annotations

from blocks.flow import Tokens
from blocks.legend import Float, Int, Shaped, Tensor, torch
from blocks.softmax import mask_bias
from blocks.tensors import accumulating, in_all_rows, take

Held = dict[str, Tensor]
"""Pairs of each query head, the older first, B E H …: rotated key, value, position, convolved key if there is one, and the
numbers of each pair. The key mapped for the state below is computed once, when a pair enters."""


def by_heads(entries: Shaped[Tensor, "B E H ..."]) -> Shaped[Tensor, "B E H ..."]:
    """Return the entries with those of each head contiguous in memory."""
    return entries.transpose(1, 2).contiguous().transpose(1, 2)


def concatenate_by_heads(entries: Shaped[Tensor, "B E H ..."], later: Shaped[Tensor, "B M H ..."]) -> Shaped[Tensor, "B S H ..."]:
    """Concatenate entries and later ones, with those of each head contiguous in memory."""
    return torch.cat((entries.transpose(1, 2), later.transpose(1, 2)), dim=2).transpose(1, 2)


def select_by_heads(held: Held, index: Int[Tensor, "B M H"]) -> Held:
    """Apply ``select`` to entries that are contiguous per head. The result is, too."""
    index = index.transpose(1, 2)
    place = in_all_rows(index.flatten(0, 1), held["key"].shape[1]).flatten()
    return {name: _at_places_by_heads(entries, place, index) for name, entries in held.items()}


def _at_places_by_heads(
    entries: Shaped[Tensor, "B E H ..."], place: Int[Tensor, " n"], like: Int[Tensor, "B H M"]
) -> Shaped[Tensor, "B M H ..."]:
    """The entries at these places, counted head by head in all rows laid end to end."""
    return entries.transpose(1, 2).flatten(0, 2).index_select(0, place).unflatten(0, like.shape).transpose(1, 2)


def eviction_bias(
    eligible: Held,
    at: Int[Tensor, "B t"],
    evictions: Int[Tensor, "B e"],
    max_per_token: int,
    left: Int[Tensor, "B E H"],
    tokens: Tokens,
) -> Float[Tensor, "B H t E"]:
    """Return the mask that is added to the logits of a block's tokens, 0 or -inf. A pair is visible from the eviction by which
    it enters the cache to the one by which it leaves.

    at: the columns of the tokens. evictions: the columns at which the last entries enter, ``max_per_token`` entries at each. left:
    the number of the eviction, from 1, by which each entry leaves; a larger number for entries that are kept.
    """
    evictions = evictions[:, ::max_per_token]
    passed = torch.arange(evictions.shape[1] + 1, device=at.device)
    entered = passed[1:].repeat_interleave(max_per_token)
    entered = torch.nn.functional.pad(entered, (left.shape[1] - entered.shape[0], 0))
    left = left.masked_fill(eligible["position"] < 0, 0).transpose(1, 2)
    # The mask is the same for all tokens between two evictions.
    between = mask_bias((entered <= passed[:, None]) & (passed[:, None] < left[:, :, None]), accumulating(eligible["value"].dtype))
    bias = take(between.transpose(1, 2), (evictions[:, None] <= at[..., None]).sum(-1)).transpose(1, 2)
    if tokens.segment is None:
        return bias
    same_document = eligible["segment"].transpose(1, 2)[:, :, None] == take(tokens.segment, at)[:, None, :, None]
    return bias + mask_bias(same_document, bias.dtype)


def select(held: Held, index: Int[Tensor, "B M H"]) -> Held:
    """Return the chosen pairs of each head."""
    heads = torch.arange(index.shape[2], device=index.device)
    place = in_all_rows((index * index.shape[2] + heads).flatten(1), held["key"].shape[1] * index.shape[2]).flatten()
    return {name: _at_places(entries, place, index) for name, entries in held.items()}


def _at_places(
    entries: Shaped[Tensor, "B E H ..."], place: Int[Tensor, " n"], like: Int[Tensor, "B M H"]
) -> Shaped[Tensor, "B M H ..."]:
    """The entries at these places, counted entry by entry in all rows laid end to end."""
    return entries.flatten(0, 2).index_select(0, place).unflatten(0, like.shape)
