"""Laws 1 and 7: the fast form of every part, spec and random head equals its definition, gradients included."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from blocks.legend import Shape
from composer.graph.composition import HeadSpec
from composer.laws.definition import LENGTH, assert_close_in_float32, assert_same, assert_same_gradients
from tests.covers import in_turns, some
from tests.laws.cases import SHAPES, build_head, covering, every_head, every_part, inputs, run, steady
from tests.laws.draw import random_heads

HEADS = every_head()
PARTS = some(HEADS, every_part())
"""Heads with each part. Those with each pair of parts are the subject of the first law alone."""
ROLES = {"memory", "value position", "read", "convolution", "output"}
OF_VALUES = {name for name in every_part() if name.partition(":")[0] in ROLES}
"""Parts that change values."""


@pytest.mark.parametrize(("name", "shape"), in_turns(HEADS, SHAPES, covering()))
def test_the_fast_form_matches_the_definition(name: str, shape: str) -> None:
    assert_same(HEADS[name], shape, LENGTH)


@pytest.mark.parametrize("name", PARTS)
def test_gradients_match_the_definition(name: str) -> None:
    assert_same_gradients(HEADS[name])


@pytest.mark.parametrize("name", some(every_part(), OF_VALUES))
def test_gradients_for_short_values_match_the_definition(name: str) -> None:
    assert_same_gradients(HEADS[name], "short values")


@pytest.mark.parametrize("name", PARTS)
def test_float32_is_close_to_float64(name: str) -> None:
    assert_close_in_float32(steady(HEADS[name]))


@given(drawn=random_heads(), length=st.integers(1, 90))
def test_random_heads_match_their_definition(drawn: tuple[HeadSpec, Shape], length: int) -> None:
    head, data = build_head(*drawn), inputs(drawn[1], 1, length)
    expected, _ = run(head, data, backend="reference")
    actual, _ = run(head, data)
    scale = max(1.0, expected.abs().max().item())
    torch.testing.assert_close(actual, expected, rtol=1e-8, atol=1e-10 * scale)
