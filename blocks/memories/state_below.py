"""The interface of the state below a sparse cache, and the selection of the cache's pairs."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from blocks.flow import Pairs
from blocks.legend import Bool, Float, Int, Shaped, Tensor, torch
from blocks.tensors import in_all_rows

Held = dict[str, Tensor]
"""Pairs of each query head, the older first, B E H …: rotated key, value, position, convolved key if there is one, and the
numbers of each pair. The key mapped for the state below is computed once, when a pair enters."""


@runtime_checkable
class Below(Protocol):
    """The state memory that a sparse cache feeds: it maps keys, predicts the values of pairs, and receives evicted pairs."""

    def map(self, pairs: Pairs) -> Float[Tensor, "B E H F"]:
        """Return the features of the pairs' keys in the state."""
        ...

    def set_pairs(self, pairs: Pairs, keys: Float[Tensor, "B E H F"]) -> None:
        """Set the pairs of the calls that follow, until the next call of ``set_pairs``: ``distances`` compares them, and ``evict``
        evicts some of them."""
        ...

    def reach(self, column: Int[Tensor, " B"]) -> None:
        """Advance the state to the token in this column, one per row, before that token's decay is applied. If the token starts
        a document, the state is empty."""
        ...

    def distances(self) -> Float[Tensor, "B E H"]:
        """Return the distance between each pair's value and the state's output for the pair's own key."""
        ...

    def evict(self, index: Int[Tensor, "B M H"], present: Bool[Tensor, "B M H"], column: Int[Tensor, " B"]) -> None:
        """Add some of the pairs to the state at the token in this column. present: which of them are pairs."""
        ...


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
