"""The map is softmax(u) ‖ softmax(-u), and each feature is at least the floor for any logits."""

from __future__ import annotations

import pytest
import torch
from pydantic import ValidationError

from blocks.feature_maps.hedgehog import Hedgehog
from tests.blocks.support import ALIKE, close, drawn, random


def test_hedgehog_equals_its_formula() -> None:
    part, x = Hedgehog(dim=3), random(1, 2, 2, 4)
    parameters = drawn(part, ALIKE)
    _, key = part.map(parameters, x, x)
    for token in range(2):
        for head in range(2):
            u = x[0, token, head] @ parameters["key_weight"][head]
            wanted = torch.cat((u.exp() / u.exp().sum(), (-u).exp() / (-u).exp().sum()))
            close(key[0, token, head], wanted)


def test_features_of_each_side_sum_to_1() -> None:
    features = Hedgehog().activate(10 * random(5, 8))
    close(features.sum(-1), torch.ones(5))


@pytest.mark.parametrize("floor", [1e-12, 1e-3])
def test_no_feature_is_below_the_floor(floor: float) -> None:
    features = Hedgehog(floor=floor).activate(torch.tensor([0.0, -100.0, -1e4, 3.0]))
    wanted = torch.tensor([0.0, -100.0, -1e4, 3.0], dtype=torch.float64).softmax(-1)
    assert features[1].item() == features[2].item() == pytest.approx(floor)
    close(features.double(), wanted.clamp(min=floor), 1e-6)


def test_the_floor_is_applied_in_float32() -> None:
    # Its square is the smallest product of a query and a key.
    Hedgehog(floor=1e-18)
    for wrong in (0.0, 1e-20, 1.0):
        with pytest.raises(ValidationError):
            Hedgehog(floor=wrong)


@pytest.mark.parametrize("scale", [1.0, 30.0])
def test_gradients_of_two_sides_match_numerical_gradients(scale: float) -> None:
    """Gradients are right with floored features, which have no gradient, and without them."""
    part, inputs = Hedgehog(dim=5, floor=1e-9), scale * random(2, 3, 2, 5)
    assert bool((inputs.softmax(-1) < 1e-9).any()) == (scale > 1)
    weights, answers = random(2, 3, 2, 10), []
    for sides in (part.sides, lambda u: torch.cat((u.softmax(-1), (-u).softmax(-1)), dim=-1).clamp(min=1e-9)):
        leaf = inputs.clone().requires_grad_()
        features = sides(leaf)
        answers.append((features, *torch.autograd.grad((features * weights).sum() + features.square().sum(), leaf)))
    for got, wanted in zip(*answers, strict=True):
        close(got, wanted)
