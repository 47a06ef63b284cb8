"""log α = logsigmoid(x W + b) / τ for each state head, at most 0."""

from __future__ import annotations

import math

import pytest
import torch

from blocks.gates.head import PerHead
from blocks.legend import Shape
from tests.blocks.support import drawn, owner, random, started

SHAPE = Shape(hidden_size=6, heads=4, key_heads=2, head_dim=4, features=3, state_heads=4)


@pytest.mark.parametrize("per", ["query_head", "key_head"])
def test_head_equals_its_formula(per: str) -> None:
    gate = PerHead.model_validate({"per": per, "temperature": 0.5})
    own = 4 if per == "query_head" else 2
    parameters, hidden = drawn(gate, SHAPE), random(2, 5, 6)
    decay = gate.log_decay(parameters, hidden, SHAPE)
    assert decay.shape == (2, 5, 4)
    for batch, token, head in torch.ones_like(decay).nonzero().tolist():
        row = owner(head, 4, own)
        logit = float(parameters["weight"][row] @ hidden[batch, token] + parameters["bias"][row])
        assert decay[batch, token, head].item() == pytest.approx(2 * math.log(1 / (1 + math.exp(-logit))), rel=1e-9)


def test_the_owner_sets_parameters_key_heads_and_operation_count() -> None:
    assert {name: fresh.shape for name, fresh in PerHead().parameters(SHAPE).items()} == {"weight": (4, 6), "bias": (4,)}
    keys = PerHead(per="key_head", bias=4.0)
    assert {name: fresh.shape for name, fresh in keys.parameters(SHAPE).items()} == {"weight": (2, 6), "bias": (2,)}
    assert started(keys, SHAPE)["bias"].tolist() == [4.0, 4.0]
    assert (PerHead().key_heads(SHAPE, 2), keys.key_heads(SHAPE, 2), keys.key_heads(SHAPE, 4)) == (4, 2, 4)
    assert (PerHead().flops(SHAPE, 9), keys.flops(SHAPE, 9)) == (2 * 6 * 4, 2 * 6 * 2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_any_logit_gives_a_finite_decay(dtype: torch.dtype) -> None:
    gate = PerHead()
    parameters = {name: 100 * tensor for name, tensor in drawn(gate, SHAPE, dtype).items()}
    decay = gate.log_decay(parameters, 100 * random(1, 40, 6, dtype=dtype), SHAPE)
    assert decay.dtype == torch.float32
    assert decay.isfinite().all()
    assert decay.max() <= 0
    assert decay.min() < -100
