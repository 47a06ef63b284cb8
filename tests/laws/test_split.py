"""Law 2: any split of a sequence into calls equals one call, down to single tokens, gradients included."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blocks.legend import Shape
from composer.graph.composition import HeadSpec
from composer.laws.split import LENGTH, ONE_BY_ONE, assert_same_gradients, assert_split
from tests.covers import in_turns, some
from tests.laws.cases import SMALL, covering, every_head, every_part
from tests.laws.draw import random_heads

HEADS = every_head()


SPLITS = {"1+69": (1,), "64+6": (64,), "uneven": (33, 34, 66), "one by one": ONE_BY_ONE}
FEW_CALLS = [split for split in SPLITS if split != "one by one"]


def follows_positions(spec: HeadSpec) -> bool:
    """Whether a window of the head evicts by chunks of positions, and not by tokens."""
    return any(getattr(memory, "shape", None) == "terraced" for memory in spec.memory)


@pytest.mark.parametrize(
    ("name", "split"),
    in_turns(HEADS, ["one by one"], covering()) + in_turns(HEADS, FEW_CALLS, covering()),
)
def test_any_split_equals_one_call(name: str, split: str) -> None:
    """Every head is run token by token, and in one more split."""
    assert_split(HEADS[name], SMALL.shape(4), LENGTH, SPLITS[split])


@pytest.mark.parametrize("name", some((name for name, head in HEADS.items() if not follows_positions(head)), covering()))
def test_positions_may_jump_at_the_start_of_a_call(name: str) -> None:
    """Positions jump before a call of several tokens, before a step of decode, and within a call."""
    assert_split(HEADS[name], SMALL.shape(4), 40, (13, 27, 28, 29), jumps=(13, 28, 34))


@given(drawn=random_heads(), length=st.integers(2, 90), bounds=st.lists(st.integers(1, 89), max_size=6))
def test_any_split_of_random_heads_equals_one_call(drawn: tuple[HeadSpec, Shape], length: int, bounds: list[int]) -> None:
    assert_split(*drawn, length, tuple(bounds))


@pytest.mark.parametrize("name", some(HEADS, every_part()))
def test_gradients_token_by_token_equal_those_of_one_call(name: str) -> None:
    assert_same_gradients(HEADS[name], SMALL.shape(4), 14, tuple(range(14)))


@given(drawn=random_heads(), length=st.integers(2, 14))
def test_gradients_of_random_heads_token_by_token_equal_those_of_one_call(drawn: tuple[HeadSpec, Shape], length: int) -> None:
    assert_same_gradients(*drawn, length, tuple(range(length)))
