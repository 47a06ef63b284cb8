"""The pair that falls alone is the last in the order of all."""

from __future__ import annotations

import math

import torch
from hypothesis import given, strategies

from blocks.scores.base import RESOLUTION, last, order

NUMBERS = strategies.sampled_from((0.0, 1.0, 1.0 + RESOLUTION / 2, 1.0 + 3 * RESOLUTION, -2.0, math.inf, -math.inf))


@given(strategies.lists(NUMBERS, min_size=2, max_size=7))
def test_one_falls_as_in_the_order_of_all(numbers: list[float]) -> None:
    """With equals, near equals, infinite scores and places without a pair; in two heads, of which one has them backwards."""
    score = torch.tensor([numbers, numbers[::-1]]).T[None]
    resolution = RESOLUTION * score.abs()
    assert torch.equal(last(score, resolution), order(score, resolution, len(numbers) - 1)[:, -1:])
