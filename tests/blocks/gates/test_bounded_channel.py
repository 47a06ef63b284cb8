"""log α = -c σ(tanh(x W₁) W₂ + b) for each feature of each state head, between -c and 0."""

from __future__ import annotations

import math

import pytest
import torch

from blocks.gates.bounded_channel import BoundedChannel
from blocks.legend import Shape
from tests.blocks.support import close, drawn, owner, random, started

SHAPE = Shape(hidden_size=6, heads=4, key_heads=2, head_dim=4, features=3, state_heads=4)


@pytest.mark.parametrize(("per", "state_heads"), [("query_head", 4), ("key_head", 2), ("key_head", 4)])
def test_bounded_channel_equals_its_formula(per: str, state_heads: int) -> None:
    gate = BoundedChannel.model_validate({"rank": 2, "per": per, "steepest": 3.0})
    own = 4 if per == "query_head" else 2
    shape = Shape(hidden_size=6, heads=4, key_heads=2, head_dim=4, features=3, state_heads=state_heads)
    parameters, hidden = drawn(gate, shape), random(2, 5, 6)
    decay = gate.log_decay(parameters, hidden, shape)
    assert decay.shape == (2, 5, state_heads, 3)
    for batch, token, head, feature in torch.ones_like(decay).nonzero().tolist():
        column = owner(head, state_heads, own) * 3 + feature
        inner = [math.tanh(float(row @ hidden[batch, token])) for row in parameters["down"]]
        logit = sum(float(parameters["up"][column, place]) * number for place, number in enumerate(inner))
        wanted = -3.0 / (1 + math.exp(-logit - float(parameters["bias"][column])))
        assert decay[batch, token, head, feature].item() == pytest.approx(wanted, rel=1e-9)


def test_parameters_and_operation_count_equal_a_count_by_hand() -> None:
    parameters = {name: fresh.shape for name, fresh in BoundedChannel(rank=2, per="key_head").parameters(SHAPE).items()}
    assert parameters == {"down": (2, 6), "up": (6, 2), "bias": (6,)}
    assert started(BoundedChannel(bias=1.5), SHAPE)["bias"].tolist() == [1.5] * 12
    assert BoundedChannel(rank=2).flops(SHAPE, 9) == 2 * 2 * (6 + 12)


def test_decays_are_at_least_those_of_rwkv7() -> None:
    """A decay is at least 0.545, as in RWKV-7, for any logit."""
    parameters = {name: 100 * tensor for name, tensor in drawn(BoundedChannel(), SHAPE, torch.bfloat16).items()}
    decay = BoundedChannel().log_decay(parameters, 100 * random(1, 40, 6, dtype=torch.bfloat16), SHAPE)
    assert decay.dtype == torch.float32
    assert decay.max() <= 0
    close(decay.min().exp(), torch.tensor(0.5452392118926051), 1e-6)
