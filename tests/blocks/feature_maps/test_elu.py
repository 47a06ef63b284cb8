"""1 + ELU is x + 1 above 0 and exp(x) below, exact to the last digit for small values."""

from __future__ import annotations

import math

import pytest
import torch

from blocks.feature_maps.elu import OnePlusElu


@pytest.mark.parametrize("x", [-300.0, -40.0, -1.5, -1e-9, 0.0, 1e-9, 2.0, 1e6])
def test_elu_equals_its_formula(x: float) -> None:
    feature = OnePlusElu().activate(torch.tensor([x], dtype=torch.float64)).item()
    assert feature == pytest.approx(x + 1 if x > 0 else math.exp(x), rel=1e-15, abs=0)


def test_gradients_are_finite_for_inputs_that_overflow_exp() -> None:
    inputs = torch.tensor([-1e4, 0.0, 1e4], requires_grad=True)
    (gradient,) = torch.autograd.grad(OnePlusElu().activate(inputs).sum(), inputs)
    assert gradient.tolist() == [0.0, 1.0, 1.0]
