"""Law 2: any split of a sequence into calls is the whole, down to one token at a time, with the state handed on; gradients, too."""

from __future__ import annotations

import functools
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from blocks.legend import Shape
from blocks.part import State
from composer.graph.composition import HeadSpec
from composer.model.head import Head
from tests.laws.cases import SMALL, Inputs, built, every_head, inputs, once, pieces, run
from tests.laws.draw import random_heads

HEADS = every_head()
LENGTH = 70
ONE_BY_ONE = (*range(28), *range(60, LENGTH))
"""Until every window and cache has overflowed more than once, and across the border of a chunk; between them, in one call."""


@functools.lru_cache(maxsize=128)
def in_one(spec: HeadSpec, shape: Shape, length: int, jumps: tuple[int, ...]) -> tuple[Head, Inputs, torch.Tensor, State]:
    """A head, its inputs, and what it answers and hands on when they come in one call. jumps: tokens before which positions are
    left out."""
    head, data = built(spec, shape), inputs(shape, 2, length)
    if jumps:
        index = data.tokens.position
        data.tokens = replace(data.tokens, position=index + 101 * sum((index >= at).long() for at in jumps), index=index)
    return head, data, *run(head, data)


@once
def assert_split(spec: HeadSpec, shape: Shape, length: int, bounds: tuple[int, ...], jumps: tuple[int, ...] = ()) -> None:
    head, data, whole, final = in_one(spec, shape, length, jumps)
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


@pytest.mark.parametrize("bounds", [(1,), (64,), (33, 34, 66), ONE_BY_ONE], ids=["1+69", "64+6", "uneven", "one by one"])
@pytest.mark.parametrize("name", HEADS)
def test_any_split_is_the_whole(name: str, bounds: tuple[int, ...]) -> None:
    assert_split(HEADS[name], SMALL.shape(4), LENGTH, bounds)


def follows_positions(spec: HeadSpec) -> bool:
    """Whether a window of the head falls by chunks of positions, and not by tokens."""
    return any(getattr(memory, "shape", None) == "terraced" for memory in spec.memory)


@pytest.mark.parametrize("name", [name for name, head in HEADS.items() if not follows_positions(head)])
def test_positions_may_jump_where_a_call_begins(name: str) -> None:
    """Into a call of several tokens, into a step of decode, and within a call."""
    assert_split(HEADS[name], SMALL.shape(4), 40, (13, 27, 28, 29), jumps=(13, 28, 34))


@given(drawn=random_heads(), length=st.integers(2, 90), bounds=st.lists(st.integers(1, 89), max_size=6))
def test_random_heads_split_anywhere(drawn: tuple[HeadSpec, Shape], length: int, bounds: list[int]) -> None:
    assert_split(*drawn, length, tuple(bounds))


def gradients(spec: HeadSpec, shape: Shape, length: int, bounds: tuple[int, ...]) -> list[torch.Tensor]:
    """By inputs and parameters, through the states between the calls."""
    head, given_ = built(spec, shape).requires_grad_(), inputs(shape, 2, length)
    leaves = [tensor.requires_grad_() for tensor in given_.tensors]
    outputs, state = [], None
    for piece in pieces(length, bounds):
        output, state = run(head, given_.cut(piece), state)
        outputs.append(output)
    torch.cat(outputs, dim=1).square().sum().backward()
    return [torch.zeros_like(leaf) if leaf.grad is None else leaf.grad for leaf in (*leaves, *head.parameters())]


@once
def assert_same_gradients(spec: HeadSpec, shape: Shape, length: int, bounds: tuple[int, ...]) -> None:
    found, wanted = (gradients(spec, shape, length, between) for between in (bounds, ()))
    for own, whole in zip(found, wanted, strict=True):
        torch.testing.assert_close(own, whole, rtol=1e-7, atol=1e-9 * max(1.0, whole.abs().max().item()))


@pytest.mark.parametrize("name", HEADS)
def test_gradients_of_one_token_after_the_other_are_those_of_the_whole(name: str) -> None:
    assert_same_gradients(HEADS[name], SMALL.shape(4), 14, tuple(range(14)))


@given(drawn=random_heads(), length=st.integers(2, 14))
def test_random_heads_have_the_same_gradients_one_token_after_the_other(drawn: tuple[HeadSpec, Shape], length: int) -> None:
    assert_same_gradients(*drawn, length, tuple(range(length)))
