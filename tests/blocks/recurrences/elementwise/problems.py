"""Inputs for the elementwise recurrence: any length, any decay, one or several documents."""

from __future__ import annotations

import torch
from torch import Tensor

from tests.blocks.support import random

Problem = tuple[Tensor, Tensor, Tensor | None, Tensor]
"""What a form takes: inputs, log_decay, segment, state."""


def draw(length: int, *, documents: bool = False, batch: int = 2, width: int = 3, steepness: float = 1.0) -> Problem:
    """Draw random inputs. documents: the first row starts a document at its first token, the second row continues the state at
    first.
    """
    segment = None
    if documents:
        starts = torch.rand(batch, length) < 0.15
        starts[:, 0] = torch.arange(batch) == 0
        segment = starts.cumsum(1)
    log_decay = -steepness * torch.rand(batch, length, width, dtype=torch.float64)
    return random(batch, length, width), log_decay, segment, random(batch, width)
