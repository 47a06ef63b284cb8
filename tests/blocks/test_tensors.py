"""Sums have wide dtypes, a norm is the same with and without gradients, and heads are repeated in consecutive groups."""

from __future__ import annotations

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from blocks.norms import rms_norm
from blocks.tensors import accumulating, repeat_heads
from tests.blocks.support import random


def test_sums_accumulate_in_float32_or_better() -> None:
    kinds = {
        torch.bfloat16: torch.float32,
        torch.float16: torch.float32,
        torch.float32: torch.float32,
        torch.float64: torch.float64,
    }
    assert {kind: accumulating(kind) for kind in kinds} == kinds


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("width", [4, 8192])
def test_norms_with_and_without_gradients_are_equal(width: int, kind: torch.dtype) -> None:
    """Both norms match for numbers small beside epsilon, for zeros, and change neither states nor weight."""
    states, weight = random(4, 2, width), random(width)
    states[0] *= 1e-4
    states[1] = 0.0
    wanted = states / (states.square().mean(-1, keepdim=True) + 1e-6).sqrt() * weight
    states, weight = states.to(kind), weight.to(kind)
    before = states.clone(), weight.clone()
    within = {torch.bfloat16: 3e-2, torch.float32: 2e-6, torch.float64: 1e-12}[kind]
    for gradients in (True, False):
        with torch.set_grad_enabled(gradients):
            actual = rms_norm(states, weight, 1e-6)
        assert actual.dtype == kind
        torch.testing.assert_close(actual.double(), wanted, rtol=within, atol=within)
    assert torch.equal(states, before[0])
    assert torch.equal(weight, before[1])


@torch.no_grad()
def test_norms_of_fake_tensors_cache_no_fake_tensor() -> None:
    """The tensors that are cached for all norms of an epsilon are never fake tensors."""
    states, weight = random(3, 4), random(4)
    with FakeTensorMode() as fake:
        rms_norm(fake.from_tensor(states), fake.from_tensor(weight), 0.00321)
    assert type(rms_norm(states, weight, 0.00321)) is torch.Tensor


def test_consecutive_heads_share_a_key_head() -> None:
    states = torch.arange(2.0).view(1, 1, 2, 1)
    assert repeat_heads(states, 6).flatten().tolist() == [0, 0, 0, 1, 1, 1]
    assert repeat_heads(states, 2) is states
