"""The window in blocks equals the window by its mask for any sizes, documents and gaps, gradients included."""

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
    """Return the mask entry by entry: query t sees entries t + 1 … t + size, or the last of them."""
    batch, entries = key.shape[:2]
    visible = [[[False] * entries for _ in range(query.shape[1])] for _ in range(batch)]
    is_present, document, reaches = (None if of is None else of.tolist() for of in (present, segment, reach))
    for row, t in product(range(batch), range(query.shape[1])):
        for entry in range(t + 1 if reaches is None else t + size - reaches[row][t], t + size + 1):
            own = document is None or document[row][entry] == document[row][size + t]
            visible[row][t][entry] = own and (is_present is None or is_present[row][entry])
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


def both(arguments: tuple, *, by_kernel: bool = False, gradients: bool = True) -> tuple[Partial, Partial]:
    with torch.set_grad_enabled(gradients):
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
    gradients=st.booleans(),
    seed=st.integers(0, 2**31),
)
def test_windowed_forms_match_dense_attention_with_a_mask(
    block: int, span: int, by_kernel: bool, gradients: bool, seed: int, **sizes: Any
) -> None:
    """The products form, which also returns the largest logit, and PyTorch's kernel match, with and without gradients. chunks:
    each query has its own reach.
    """
    torch.manual_seed(seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MODULE, "BLOCK", block)
        patch.setattr(MODULE, "SPAN", span)
        got, wanted = both(problem(**sizes), by_kernel=by_kernel, gradients=gradients)
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
def test_default_block_sizes_match_dense_attention(length: int, size: int, by_kernel: bool) -> None:
    got, wanted = both(problem(length, size, (4, 2), True, True, True), by_kernel=by_kernel)
    close(got.output, wanted.output)


@pytest.mark.parametrize("written_out", [True, False])
@pytest.mark.parametrize("chunks", [False, True])
def test_gradients_match_dense_attention_with_a_mask(written_out: bool, chunks: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Gradients of the output, the mass, the largest logit and all of them match. A gap of a whole window gives rows that see
    nothing.
    """
    monkeypatch.setattr(MODULE, "BLOCK", 4)
    if not written_out:  # as on a GPU
        for question in ("may_read_numbers", "derives_by_hand"):
            monkeypatch.setattr(MODULE, question, lambda tensor: False)
    query, key, value, present, segment, size, reach = problem(11, 3, (4, 2), True, True, chunks)
    present[:, 4:10] = False
    weights = random(*query.shape)
    for parts in ("output", "mass", "largest"), ("output",), ("mass",), ("largest",):
        answers = []
        for form in (windowed, masked):
            tensors = [tensor.clone().requires_grad_() for tensor in (query, key, value)]
            partial = form(*tensors, present, segment, size, reach)
            assert partial.lse is not None
            assert partial.maximum is not None
            assert partial.lse.isneginf().any()
            seen = ~partial.lse.isneginf()
            losses = {
                "output": (partial.output * weights).sum() + partial.output.square().sum(),
                "mass": partial.lse.exp().sum(),
                "largest": (partial.maximum.masked_fill(~seen, 0.0) * weights[..., 0]).sum(),
            }
            loss = sum((losses[part] for part in parts), torch.zeros(()))
            answers.append(torch.autograd.grad(loss, tensors, allow_unused=True, materialize_grads=True))
        for got, wanted in zip(*answers, strict=True):
            close(got, wanted)


def test_gradients_are_right_for_tensors_used_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gradients are right if entries are keys and values, an output is used twice, backward runs twice, and for each input
    alone.
    """
    monkeypatch.setattr(MODULE, "BLOCK", 4)
    query, key, _, present, segment, size, _ = problem(11, 3, (4, 2), True, True)
    answers = []
    for form in (windowed, masked):
        queries, entries = tensors = [of.clone().requires_grad_() for of in (query, key)]
        first = form(queries, entries, entries, present, segment, size)
        second = form(first.output + queries, entries, entries, present, segment, size)
        assert second.lse is not None
        loss = (first.output * second.output).sum() + second.lse.exp().sum()
        actual = [*torch.autograd.grad(loss, tensors, retain_graph=True), *torch.autograd.grad(2 * loss, tensors)]
        alone = form(query, key, entries, present, segment, size).output.square().sum()
        answers.append([*actual, *torch.autograd.grad(alone, entries)])
    for got, wanted in zip(*answers, strict=True):
        close(got, wanted)


def test_half_precision_is_close_to_float64() -> None:
    states = [states.bfloat16() for states in problem(9, 4, (4, 2), False, False)[:3]]
    got = windowed(*states, None, None, 4)
    wanted = windowed(*(states.double() for states in states), None, None, 4)
    assert got.lse is not None
    assert wanted.lse is not None
    assert (got.output.dtype, got.lse.dtype) == (torch.bfloat16, torch.float32)
    close(got.lse.double(), wanted.lse, 1e-5)
