"""log α = logsigmoid(x W₁ W₂ + b) / τ for each feature of each state head, at most 0."""

from __future__ import annotations

import math

import pytest
import torch

from blocks.gates.channel import PerChannel
from blocks.legend import Shape
from tests.blocks.support import drawn, owner, random, started

SHAPE = Shape(hidden_size=6, heads=4, key_heads=2, head_dim=4, features=3, state_heads=4)


@pytest.mark.parametrize(("per", "state_heads"), [("query_head", 4), ("key_head", 2), ("key_head", 4)])
@pytest.mark.parametrize("rank", [2, "full"])
def test_channel_equals_its_formula(rank: int | str, per: str, state_heads: int) -> None:
    gate = PerChannel.model_validate({"rank": rank, "per": per, "temperature": 3.0})
    own = 4 if per == "query_head" else 2
    shape = Shape(hidden_size=6, heads=4, key_heads=2, head_dim=4, features=3, state_heads=state_heads)
    parameters, hidden = drawn(gate, shape), random(2, 5, 6)
    decay = gate.log_decay(parameters, hidden, shape)
    assert decay.shape == (2, 5, state_heads, 3)
    matrix = parameters["weight"] if rank == "full" else parameters["up"] @ parameters["down"]
    for batch, token, head, feature in torch.ones_like(decay).nonzero().tolist():
        column = owner(head, state_heads, own) * 3 + feature
        logit = float(matrix[column] @ hidden[batch, token] + parameters["bias"][column])
        survives = (1 / (1 + math.exp(-logit))) ** (1 / 3)
        assert decay[batch, token, head, feature].item() == pytest.approx(math.log(survives), rel=1e-9)


def test_rank_and_owner_set_the_shapes_of_the_parameters() -> None:
    def shapes(**choice: object) -> dict[str, tuple[int, ...]]:
        return {name: fresh.shape for name, fresh in PerChannel.model_validate(choice).parameters(SHAPE).items()}

    assert shapes() == {"down": (16, 6), "up": (12, 16), "bias": (12,)}
    assert shapes(rank=2, per="key_head") == {"down": (2, 6), "up": (6, 2), "bias": (6,)}
    assert shapes(rank="full") == {"weight": (12, 6), "bias": (12,)}
    assert started(PerChannel(bias=4.0), SHAPE)["bias"].tolist() == [4.0] * 12


def test_the_owner_sets_the_number_of_key_heads_of_the_state() -> None:
    assert PerChannel().key_heads(SHAPE, 2) == 4
    assert PerChannel(per="key_head").key_heads(SHAPE, 2) == 2
    assert PerChannel(per="key_head").key_heads(SHAPE, 4) == 4


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_any_logit_gives_a_finite_decay(dtype: torch.dtype) -> None:
    gate = PerChannel(rank=2)
    parameters = {name: 100 * tensor for name, tensor in drawn(gate, SHAPE, dtype).items()}
    hidden = (100 * random(1, 9, 6, dtype=dtype)).requires_grad_()
    decay = gate.log_decay(parameters, hidden, SHAPE)
    assert decay.dtype == torch.float32
    assert decay.max() <= 0
    assert decay.min() < -1e3
    assert decay.isfinite().all()
    (gradient,) = torch.autograd.grad(decay.sum(), hidden)
    assert gradient.isfinite().all()


def test_a_unit_input_starts_with_a_unit_logit() -> None:
    shape = Shape(hidden_size=256, heads=8, key_heads=8, head_dim=32, features=32, state_heads=8)
    gate = PerChannel(rank=64, temperature=1.0)
    logits = gate.log_decay(started(gate, shape), random(4, 16, 256), shape).exp().logit()
    assert logits.std().item() == pytest.approx(1.0, rel=0.1)


def test_operation_count_equals_a_count_by_hand() -> None:
    assert PerChannel(rank=2).flops(SHAPE, 9) == 2 * 2 * (6 + 12)
    assert PerChannel(rank="full").flops(SHAPE, 9) == 2 * 6 * 12
    assert PerChannel(rank=2, per="key_head").flops(SHAPE, 9) == 2 * 2 * (6 + 6)
