"""The decays are RetNet's constants: each head decays half as fast as the head before it."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from blocks.gates.constant import Constant
from blocks.legend import Shape

SHAPE = Shape(hidden_size=6, heads=6, key_heads=2, head_dim=4, features=3, state_heads=6)


def test_decays_equal_the_constants_of_retnet() -> None:
    decay = Constant().log_decay({}, torch.zeros(2, 3, 6, dtype=torch.float64), SHAPE)
    assert decay.shape == (2, 3, 6)
    for head, survives in enumerate([31 / 32, 63 / 64, 127 / 128, 255 / 256, 511 / 512, 1023 / 1024]):
        assert decay[1, 2, head].item() == pytest.approx(math.log(survives), rel=1e-14)


def test_exponent_1_starts_at_a_decay_of_one_half() -> None:
    decay = Constant(exponent=1.0).log_decay({}, torch.zeros(1, 1, 6), SHAPE)
    assert decay[0, 0].exp().tolist() == pytest.approx([0.5, 0.75, 0.875, 0.9375, 0.96875, 0.984375])


def test_the_slowest_of_64_heads_still_decays() -> None:
    shape = Shape(hidden_size=6, heads=64, key_heads=64, head_dim=4, state_heads=64)
    decay = Constant().log_decay({}, torch.zeros(1, 1, 6, dtype=torch.bfloat16), shape)
    assert decay.dtype == torch.float32
    assert decay[0, 0, -1].item() == pytest.approx(-(2.0**-68), rel=1e-6)


def test_key_heads_equal_query_heads_by_default() -> None:
    assert Constant().key_heads(SHAPE, 2) == 6
    assert (Constant(per="key_head").key_heads(SHAPE, 2), Constant(per="key_head").key_heads(SHAPE, 6)) == (2, 6)
    assert Constant().parameters(SHAPE) == {}


@pytest.mark.parametrize("state_heads", [2, 6])
def test_query_heads_of_a_key_head_share_its_decay(state_heads: int) -> None:
    shape = replace(SHAPE, state_heads=state_heads)
    decay = Constant(per="key_head").log_decay({}, torch.zeros(1, 1, 6, dtype=torch.float64), shape)[0, 0].exp()
    wanted = [31 / 32] * (state_heads // 2) + [63 / 64] * (state_heads // 2)
    assert decay.tolist() == pytest.approx(wanted, rel=1e-14)
