"""A law: a text in pieces without gradients equals the whole text with gradients. Some forms run only without gradients."""

from __future__ import annotations

import pytest

from composer.laws.split import assert_same_in_pieces
from tests.covers import some
from tests.laws.cases import every_head, every_part, steady

HEADS = every_head()
FEW = some(HEADS, every_part())


@pytest.mark.parametrize("name", FEW)
def test_pieces_without_gradients_equal_one_pass(name: str) -> None:
    assert_same_in_pieces(HEADS[name])


@pytest.mark.parametrize("name", FEW)
def test_pieces_with_padding_and_documents_equal_one_pass(name: str) -> None:
    assert_same_in_pieces(steady(HEADS[name]), documents=True, in_place=True)


@pytest.mark.parametrize("name", ["memory: full", "memory: window"])
def test_pieces_with_attention_sinks_equal_one_pass(name: str) -> None:
    assert_same_in_pieces(HEADS[name], sinks=True)


def test_pieces_with_final_values_equal_one_pass() -> None:
    assert_same_in_pieces(HEADS["memory: state"], value_is_final=True)
