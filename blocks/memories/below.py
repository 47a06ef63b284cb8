"""What a cache whose pairs are each query head's own asks of the state below it, and how it picks some of its pairs."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from blocks.flow import Pairs
from blocks.legend import Bool, Float, Int, Tensor, torch
from blocks.tensors import in_all_rows

Held = dict[str, Tensor]
"""Pairs of each query head, the older first, B E H …: the key, turned, value, position (and convolved key) and numbers as they
travel, and what is computed of each once, where it enters: the key mapped for the state below."""


@runtime_checkable
class Below(Protocol):
    """The state memory that a sparse cache feeds: how it sees pairs, what it would answer to them, and how it takes them."""

    def map(self, pairs: Pairs) -> Float[Tensor, "B E H F"]:
        """The pairs' keys as the state sees them."""
        ...

    def look(self, pairs: Pairs, keys: Float[Tensor, "B E H F"]) -> None:
        """These pairs are asked for, and some of them fall, until others are."""
        ...

    def reach(self, column: Int[Tensor, " B"]) -> None:
        """Let time pass up to the token in this column, one a row, without its decay; a document that it starts finds nothing."""
        ...

    def distances(self) -> Float[Tensor, "B E H"]:
        """How far what the state, as it stands, answers to each pair's own key is from the pair's value."""
        ...

    def fall(self, index: Int[Tensor, "B M H"], present: Bool[Tensor, "B M H"], column: Int[Tensor, " B"]) -> None:
        """Let some of the pairs, where they are there, fall in at the token in this column."""
        ...


def selected(held: Held, index: Int[Tensor, "B M H"]) -> Held:
    """Some of them, each head its own."""
    heads = torch.arange(index.shape[2], device=index.device)
    place = in_all_rows((index * index.shape[2] + heads).flatten(1), held["key"].shape[1] * index.shape[2]).flatten()
    return {name: entries.flatten(0, 2).index_select(0, place).unflatten(0, index.shape) for name, entries in held.items()}
