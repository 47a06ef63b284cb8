"""The elementwise recurrence on fla's kernels equals its definition: gradients, an initial state, documents, splits."""

from __future__ import annotations

import pytest
import torch

import tests.interpreter  # noqa: F401 - the kernels run in it
from blocks.recurrences.elementwise import naive
from blocks.recurrences.elementwise.fla_forms import chunked
from tests.blocks.recurrences.kernels import compared

LONGER = 131
"""Than a chunk, and odd."""


@pytest.mark.parametrize(("documents", "cut"), [(False, 0), (False, 129), (True, 0), (True, 50)])
def test_the_kernel_matches_the_definition(documents: bool, cut: int) -> None:
    inputs, state = (torch.randn(*shape, dtype=torch.float64) for shape in ((2, LONGER, 5), (2, 5)))
    decay = torch.nn.functional.logsigmoid(torch.randn(2, LONGER, 5, dtype=torch.float64))
    segment = None
    if documents:
        starts = torch.rand(2, LONGER) < 0.1
        starts[:, 0] = torch.tensor([True, False])
        segment = starts.cumsum(1)
        assert segment[:, -1].min() > 1
    compared(naive, chunked, (inputs, decay, state), segment, cut)
