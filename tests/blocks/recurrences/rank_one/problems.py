"""Inputs for the generalised delta rule: every rank of decay, every sharing of heads, documents, w equal to the key or not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tests.blocks.support import random

RANKS = ["none", "head", "channel"]
HEADS = [(2, 2, 2), (4, 4, 2), (4, 2, 2), (4, 4, 1), (6, 2, 1)]
"""H query heads, N state heads, K key heads."""
FEATURES, WIDTH = 3, 2


@dataclass(frozen=True)
class Problem:
    """The inputs of a form."""

    query: Tensor
    key: Tensor
    value: Tensor
    read: Tensor
    removed: Tensor | None
    log_decay: Tensor | None
    segment: Tensor | None
    state: Tensor

    @property
    def columns(self) -> tuple[Tensor | None, ...]:
        """Return the tensors with a row per token in the order of a form's signature, without the documents."""
        return self.query, self.key, self.value, self.read, self.removed, self.log_decay

    @property
    def tensors(self) -> list[Tensor]:
        """Return all tensors that have gradients."""
        return [tensor for tensor in (*self.columns, self.state) if tensor is not None]

    def arguments(self, tensors: list[Tensor] | None = None) -> tuple[Any, ...]:
        """Return the arguments in the order of a form's signature, with other tensors in place of its own."""
        waiting = iter(self.tensors if tensors is None else tensors)
        columns = [None if tensor is None else next(waiting) for tensor in self.columns]
        return *columns, self.segment, next(waiting)


def draw(
    rank: str,
    heads: tuple[int, int, int],
    length: int,
    *,
    apart: bool = True,
    documents: bool = False,
    batch: int = 2,
    steepness: float = 1.0,
    features: int = FEATURES,
) -> Problem:
    """Draw random inputs with r of length 1 and w between 0 and r, so that the state is bounded. apart: w is not the key.
    documents: the first row starts a document at its first token, the second row continues the state.
    """
    query_heads, state_heads, key_heads = heads
    segment = None
    if documents:
        starts = torch.rand(batch, length) < 0.15
        starts[:, 0] = torch.arange(batch) == 0
        segment = starts.cumsum(1)
    decay = None
    if rank != "none":
        own = (batch, length, state_heads, *([features] if rank == "channel" else []))
        decay = -steepness * torch.rand(own, dtype=torch.float64)
    read = torch.nn.functional.normalize(random(batch, length, state_heads, features), dim=-1)
    removed = torch.rand(read.shape, dtype=torch.float64) * read
    return Problem(
        random(batch, length, query_heads, features),
        random(batch, length, state_heads, features) if apart else removed,
        random(batch, length, key_heads, WIDTH),
        read,
        removed if apart else None,
        decay,
        segment,
        random(batch, state_heads, features, WIDTH),
    )
