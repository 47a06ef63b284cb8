"""Inputs for the delta rule: every rank of decay, every sharing of heads, one or several documents, tokens without a pair."""

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
    rate: Tensor
    log_decay: Tensor | None
    segment: Tensor | None
    state: Tensor

    @property
    def tensors(self) -> list[Tensor]:
        """Return all tensors that have gradients."""
        tensors = [self.query, self.key, self.value, self.rate, self.log_decay, self.state]
        return [tensor for tensor in tensors if tensor is not None]

    def arguments(self, tensors: list[Tensor] | None = None) -> tuple[Any, ...]:
        """Return the arguments in the order of a form's signature, with other tensors in place of its own."""
        query, key, value, rate, *decay, state = tensors or self.tensors
        return query, key, value, rate, decay[0] if decay else None, self.segment, state


def draw(
    rank: str,
    heads: tuple[int, int, int],
    length: int,
    *,
    documents: bool = False,
    batch: int = 2,
    steepness: float = 1.0,
    features: int = FEATURES,
    fastest: float = 2.0,
) -> Problem:
    """Draw random inputs with keys of length 1 and rates below ``fastest``, about every fifth of them 0. documents: the first
    row starts a document at its first token, the second row continues the state at first.
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
    rate = fastest * torch.rand(batch, length, state_heads, dtype=torch.float64)
    return Problem(
        random(batch, length, query_heads, features),
        torch.nn.functional.normalize(random(batch, length, state_heads, features), dim=-1),
        random(batch, length, key_heads, WIDTH),
        rate.masked_fill(torch.rand(rate.shape) < 0.2, 0.0),
        decay,
        segment,
        random(batch, state_heads, features, WIDTH),
    )
