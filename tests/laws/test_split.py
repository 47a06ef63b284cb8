"""Law 2: any split of a sequence into calls is the whole, down to one token at a time, with the state handed on."""

from __future__ import annotations

import functools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from blocks.legend import Shape
from blocks.part import State
from composer.graph.composition import HeadSpec
from composer.model.head import Head
from tests.laws.cases import SMALL, Inputs, built, every_head, inputs, once, pieces, run
from tests.laws.draw import random_heads

HEADS = every_head()
LENGTH = 70


@functools.lru_cache(maxsize=128)
def in_one(spec: HeadSpec, shape: Shape, length: int) -> tuple[Head, Inputs, torch.Tensor, State]:
    """A head, its inputs, and what it answers and hands on when they come in one call."""
    head, data = built(spec, shape), inputs(shape, 2, length)
    return head, data, *run(head, data)


@once
def assert_split(spec: HeadSpec, shape: Shape, length: int, bounds: tuple[int, ...]) -> None:
    head, data, whole, final = in_one(spec, shape, length)
    outputs, state = [], None
    for piece in pieces(length, bounds):
        output, state = run(head, data.cut(piece), state)
        outputs.append(output)
    scale = max(1.0, whole.abs().max().item())
    torch.testing.assert_close(torch.cat(outputs, dim=1), whole, rtol=1e-9, atol=1e-11 * scale)
    assert state is not None
    for name, tensor in final.items():
        size = tensor[tensor.isfinite()].abs().max().item() if tensor.isfinite().any() else 0.0
        torch.testing.assert_close(state[name], tensor, rtol=1e-9, atol=1e-11 * max(1.0, size))


@pytest.mark.parametrize("bounds", [(1,), (64,), (33, 34, 66), tuple(range(LENGTH))], ids=["1+69", "64+6", "uneven", "one by one"])
@pytest.mark.parametrize("name", HEADS)
def test_any_split_is_the_whole(name: str, bounds: tuple[int, ...]) -> None:
    assert_split(HEADS[name], SMALL.shape(4), LENGTH, bounds)


@given(drawn=random_heads(), length=st.integers(2, 90), bounds=st.lists(st.integers(1, 89), max_size=6))
@settings(deadline=None)
def test_random_heads_split_anywhere(drawn: tuple[HeadSpec, Shape], length: int, bounds: list[int]) -> None:
    assert_split(*drawn, length, tuple(bounds))
