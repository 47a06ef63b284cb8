"""The window in blocks is the window by its mask, for any sizes, documents and gaps, gradients included."""

from __future__ import annotations

import importlib
from itertools import product
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from blocks.flow import Partial
from blocks.softmax import dense, windowed
from tests.blocks.support import close, random

MODULE = importlib.import_module("blocks.softmax.windowed")


def masked(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    present: Tensor | None,
    segment: Tensor | None,
    size: int,
    reach: Tensor | None = None,
) -> Partial:
    """Query t sees entries t + 1 … t + size, or the last of them: written as a mask, entry by entry."""
    batch, entries = key.shape[:2]
    visible = [[[False] * entries for _ in range(query.shape[1])] for _ in range(batch)]
    there, document, reaches = (None if of is None else of.tolist() for of in (present, segment, reach))
    for row, t in product(range(batch), range(query.shape[1])):
        for entry in range(t + 1 if reaches is None else t + size - reaches[row][t], t + size + 1):
            own = document is None or document[row][entry] == document[row][size + t]
            visible[row][t][entry] = own and (there is None or there[row][entry])
    return dense(query, key, value, torch.tensor(visible))


def problem(length: int, size: int, heads: tuple[int, int], gaps: bool, documents: bool, chunks: bool = False) -> tuple:
    states = [
        random(2, count, number, 4) for count, number in ((length, heads[0]), (size + length, heads[1]), (size + length, heads[1]))
    ]
    present = torch.rand(2, size + length) < 0.7 if gaps else None
    segment = None
    if documents:
        segment = torch.cat((torch.zeros(2, size, dtype=torch.int64), (torch.rand(2, length) < 0.2).long().cumsum(1)), dim=1)
    reach = torch.randint(0, size, (2, length)).cumsum(1) % size if chunks else None
    return *states, present, segment, size, reach


def both(arguments: tuple, *, by_kernel: bool = False) -> tuple[Partial, Partial]:
    return windowed(*arguments, by_kernel=by_kernel), masked(*arguments)


@given(
    length=st.integers(1, 24),
    size=st.integers(1, 12),
    heads=st.sampled_from([(2, 2), (4, 2), (3, 1)]),
    gaps=st.booleans(),
    documents=st.booleans(),
    chunks=st.booleans(),
    block=st.integers(1, 9),
    span=st.integers(1, 20),
    by_kernel=st.booleans(),
    seed=st.integers(0, 2**31),
)
def test_it_is_the_mask(block: int, span: int, by_kernel: bool, seed: int, **sizes: Any) -> None:
    """By products, which give the largest logit as well, and by PyTorch's kernel; chunks: each query reaches as far as it says."""
    torch.manual_seed(seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MODULE, "BLOCK", block)
        patch.setattr(MODULE, "SPAN", span)
        got, wanted = both(problem(**sizes), by_kernel=by_kernel)
    close(got.output, wanted.output)
    assert got.lse is not None
    assert wanted.lse is not None
    close(got.lse, wanted.lse)
    if by_kernel:
        assert got.maximum is None
    else:
        assert got.maximum is not None
        assert wanted.maximum is not None
        close(got.maximum, wanted.maximum)


@pytest.mark.parametrize("by_kernel", [False, True])
@pytest.mark.parametrize(("length", "size"), [(1, 64), (63, 64), (64, 64), (65, 64), (130, 3), (67, 66)])
def test_blocks_as_they_are(length: int, size: int, by_kernel: bool) -> None:
    got, wanted = both(problem(length, size, (4, 2), True, True, True), by_kernel=by_kernel)
    close(got.output, wanted.output)


def test_gradients_are_those_of_the_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that see nothing among them: a gap of a whole window."""
    monkeypatch.setattr(MODULE, "BLOCK", 4)
    query, key, value, present, segment, size, _ = problem(11, 3, (4, 2), True, True)
    present[:, 4:10] = False
    tensors = [tensor.requires_grad_() for tensor in (query, key, value)]
    answers = []
    for form in (windowed, masked):
        partial = form(*tensors, present, segment, size)
        assert partial.lse is not None
        assert partial.lse.isneginf().any()
        answers.append(torch.autograd.grad(partial.output.square().sum() + partial.lse.exp().sum(), tensors))
    for got, wanted in zip(*answers, strict=True):
        close(got, wanted)


def test_half_precision() -> None:
    states = [states.bfloat16() for states in problem(9, 4, (4, 2), False, False)[:3]]
    got = windowed(*states, None, None, 4)
    wanted = windowed(*(states.double() for states in states), None, None, 4)
    assert got.lse is not None
    assert wanted.lse is not None
    assert (got.output.dtype, got.lse.dtype) == (torch.bfloat16, torch.float32)
    close(got.lse.double(), wanted.lse, 1e-5)
