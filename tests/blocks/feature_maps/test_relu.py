"""The map is max(x, 0). With two sides it also has max(-x, 0)."""

from __future__ import annotations

import torch

from blocks.feature_maps.relu import Relu
from tests.blocks.support import random


def test_relu_equals_its_formula() -> None:
    assert Relu().activate(torch.tensor([-2.0, -0.0, 0.0, 3.5])).tolist() == [0.0, 0.0, 0.0, 3.5]


def test_two_sides_preserve_the_input() -> None:
    x = random(1, 3, 2, 4)
    features, _ = Relu(two_sided=True).map({}, x, x)
    assert torch.equal(features[..., :4] - features[..., 4:], x)
    assert features.min() == 0
