"""PyTorch's kernel equals the definition for one and several queries, also if no pair is visible, and is chosen if it fits."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from blocks.operation import Setting
from blocks.softmax import dense, mask_bias, native, native_obstacle, native_step, native_step_obstacle, single
from tests.blocks.support import close, random

HEADS = st.sampled_from([(2, 2), (4, 2), (3, 1)])


@given(heads=HEADS, held=st.integers(1, 9), own=st.booleans(), hides=st.booleans(), seed=st.integers(0, 2**31))
def test_one_query_matches_the_dense_form(heads: tuple[int, int], held: int, own: bool, hides: bool, seed: int) -> None:
    """Some places have no pair, and some rows have none at all. Pairs may belong to single query heads or be out of reach."""
    torch.manual_seed(seed)
    many, few = (heads[0], heads[0]) if own else heads
    states = random(3, 1, many, 4), random(3, held, few, 4), random(3, held, few, 4)
    position = torch.randint(-1, 2, (3, held, few) if own else (3, held))
    reached = torch.rand(3, 1, 1, held) < 0.6
    reached[..., 0] = True  # its own pair
    bias = mask_bias(reached, torch.float64) if hides else None
    got, wanted = (answer(*states, position, bias) for answer in (native_step, single))
    seen = wanted.lse > -torch.inf
    assert torch.equal(got.lse > -torch.inf, seen)
    close(got.lse[seen], wanted.lse[seen])
    close(got.output, wanted.output.nan_to_num())
    assert got.maximum is None


@given(heads=st.integers(1, 3), length=st.integers(1, 9), held=st.integers(1, 9), seed=st.integers(0, 2**31))
def test_several_queries_match_the_dense_form(heads: int, length: int, held: int, seed: int) -> None:
    torch.manual_seed(seed)
    states = random(2, length, heads, 4), random(2, held, heads, 4), random(2, held, heads, 4)
    visible = torch.rand(2, heads, length, held) < 0.4
    got, wanted = native(*states, mask_bias(visible, torch.float64)), dense(*states, visible)
    close(got.output, wanted.output)
    close(got.lse, wanted.lse)
    close(dense(*states, mask_bias(visible, torch.float32)).output, wanted.output)


def test_half_precision_is_accumulated_in_float32() -> None:
    states = [random(2, 5, 2, 4).bfloat16() for _ in range(3)]
    got = native(*states, torch.zeros(2, 2, 5, 5))
    wanted = dense(*(of.double() for of in states), torch.ones(2, 5, 5, dtype=torch.bool))
    assert got.lse is not None
    assert wanted.lse is not None
    assert (got.output.dtype, got.lse.dtype) == (torch.bfloat16, torch.float32)
    close(got.lse.double(), wanted.lse, 1e-5)


@pytest.mark.parametrize(
    ("setting", "reason"),
    [
        ({}, None),
        ({"needs_maximum": True}, "the largest logit"),
        ({"capped": True}, "caps no logits"),
        ({"gradients": True}, "no gradient of its lse"),
        ({"device": "cuda"}, "on a CPU only"),
    ],
)
def test_obstacles_name_unsupported_settings(setting: dict[str, bool], reason: str | None) -> None:
    for obstacle in (native_obstacle, native_step_obstacle):
        reason_found = obstacle(Setting(**setting))
        assert reason_found is None if reason is None else reason in str(reason_found)
    padded = Setting(padded=True)
    assert native_obstacle(padded) is None
    assert "padding" in str(native_step_obstacle(padded))
