"""The slopes are the ones that ALiBi's authors give for 8 and 16 heads, and follow their rule for other numbers of heads."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from blocks.gates.slopes import Slopes, slopes_of
from blocks.legend import Shape
from tests.blocks.support import random


def test_slopes_of_8_and_16_heads_are_geometric() -> None:
    assert slopes_of(8) == [1 / 2, 1 / 4, 1 / 8, 1 / 16, 1 / 32, 1 / 64, 1 / 128, 1 / 256]
    assert slopes_of(16) == pytest.approx([2 ** (-head / 2) for head in range(1, 17)])


def test_slopes_of_other_head_counts_interpolate_as_in_alibi() -> None:
    assert slopes_of(12) == pytest.approx([*slopes_of(8), *slopes_of(16)[0:8:2]])
    assert slopes_of(3) == pytest.approx([1 / 16, 1 / 256, 1 / 4])
    assert slopes_of(1) == [1 / 256]


def test_every_token_decays_alike() -> None:
    shape = Shape(hidden_size=6, heads=4, key_heads=2, head_dim=4, features=3, state_heads=4)
    decay = Slopes().log_decay({}, random(2, 5, 6), shape)
    wanted = torch.tensor([-1 / 4, -1 / 16, -1 / 64, -1 / 256], dtype=torch.float64)
    assert torch.equal(decay, wanted.expand(2, 5, 4))
    assert not Slopes().parameters(shape)


def test_key_heads_equal_query_heads_by_default() -> None:
    shape = Shape(hidden_size=6, heads=4, key_heads=2, head_dim=4, features=3, state_heads=2)
    assert (Slopes().key_heads(shape, 2), Slopes(per="key_head").key_heads(shape, 2)) == (4, 2)
    decay = Slopes(per="key_head").log_decay({}, random(1, 1, 6), shape)
    assert decay[0, 0].tolist() == [-1 / 16, -1 / 256]
    decay = Slopes(per="key_head").log_decay({}, random(1, 1, 6), replace(shape, state_heads=4))
    assert decay[0, 0].tolist() == [-1 / 16, -1 / 16, -1 / 256, -1 / 256]
