"""Law 3: rows are independent, padding is never seen, and documents of a packed row are separate."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blocks.legend import Shape
from composer.graph.composition import HeadSpec
from composer.laws.batch import assert_documents_apart, assert_padding_unseen, assert_rows_apart
from tests.covers import in_turns, some
from tests.laws.cases import SMALL, covering, every_head, every_part
from tests.laws.draw import random_heads

HEADS = every_head()
FEW = some(HEADS, covering())
SHAPE = SMALL.shape(4)


@pytest.mark.parametrize("name", FEW)
def test_documents_are_independent(name: str) -> None:
    assert_documents_apart(HEADS[name], SHAPE, 75, (7, 8, 66), splits=((), (3, 7, 20, 67)))


@pytest.mark.parametrize(
    ("name", "backend"), in_turns(HEADS, ["torch"], covering()) + [(name, "reference") for name in every_part()]
)
def test_padding_changes_nothing(name: str, backend: str) -> None:
    """This holds for the forms of every head, and for the definition of every part."""
    assert_padding_unseen(HEADS[name], SHAPE, (40, 0, 3, 17), backend)


@pytest.mark.parametrize("name", FEW)
def test_rows_are_independent(name: str) -> None:
    assert_rows_apart(HEADS[name], SHAPE)


@given(
    drawn=random_heads(),
    length=st.integers(2, 60),
    bounds=st.lists(st.integers(1, 59), max_size=4),
    split=st.lists(st.integers(1, 59), max_size=3),
)
def test_random_heads_keep_documents_apart(drawn: tuple[HeadSpec, Shape], length: int, bounds: list[int], split: list[int]) -> None:
    assert_documents_apart(*drawn, length, tuple(bounds), (tuple(split),))


@given(drawn=random_heads(), lengths=st.lists(st.integers(0, 30), min_size=2, max_size=3).filter(any))
def test_padding_changes_nothing_in_random_heads(drawn: tuple[HeadSpec, Shape], lengths: list[int]) -> None:
    assert_padding_unseen(*drawn, tuple(lengths), "torch")
