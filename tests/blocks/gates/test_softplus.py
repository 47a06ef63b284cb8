"""log α = -exp(A) softplus(x W + b) per head or per feature, at most 0. Steps and rates start as in Mamba-2."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from blocks.gates.softplus import Softplus
from blocks.gates.softplus_channel import SoftplusChannel
from blocks.legend import Shape
from composer.spec.loading import load_spec
from tests.blocks.support import drawn, owner, random, started

SHAPE = Shape(hidden_size=6, heads=4, key_heads=2, head_dim=4, features=3, state_heads=4)


@pytest.mark.parametrize("per", ["query_head", "key_head"])
def test_decay_by_head_equals_its_formula(per: Any) -> None:
    gate = Softplus(per=per)
    own = 4 if per == "query_head" else 2
    parameters, hidden = drawn(gate, SHAPE), random(2, 5, 6)
    decay = gate.log_decay(parameters, hidden, SHAPE)
    assert decay.shape == (2, 5, 4)
    for batch, token, head in torch.ones_like(decay).nonzero().tolist():
        row = owner(head, 4, own)
        logit = float(parameters["weight"][row] @ hidden[batch, token] + parameters["bias"][row])
        wanted = -math.exp(parameters["rate"][row]) * math.log(1 + math.exp(logit))
        assert decay[batch, token, head].item() == pytest.approx(wanted, rel=1e-9)


@pytest.mark.parametrize("rank", [2, "full"])
@pytest.mark.parametrize("per", ["query_head", "key_head"])
def test_decay_by_feature_equals_its_formula(per: Any, rank: Any) -> None:
    gate = SoftplusChannel(per=per, rank=rank)
    own = 4 if per == "query_head" else 2
    parameters, hidden = drawn(gate, SHAPE), random(1, 3, 6)
    decay = gate.log_decay(parameters, hidden, SHAPE)
    assert decay.shape == (1, 3, 4, 3)
    matrix = parameters["weight"] if rank == "full" else parameters["up"] @ parameters["down"]
    for _, token, head, feature in torch.ones_like(decay).nonzero().tolist():
        row = owner(head, 4, own)
        logit = float(matrix[3 * row + feature] @ hidden[0, token] + parameters["bias"][3 * row + feature])
        wanted = -math.exp(parameters["rate"][row]) * math.log(1 + math.exp(logit))
        assert decay[0, token, head, feature].item() == pytest.approx(wanted, rel=1e-9)


def test_decay_by_feature_equals_flash_linear_attention() -> None:
    kda = pytest.importorskip("fla.ops.kda.gate")
    gate, hidden = SoftplusChannel(rank="full"), random(1, 3, 6)
    parameters = drawn(gate, SHAPE)
    logits = (hidden @ parameters["weight"].T).view(1, 3, 4, 3)
    wanted = kda.naive_kda_gate(logits, parameters["rate"], parameters["bias"])
    torch.testing.assert_close(gate.log_decay(parameters, hidden, SHAPE).float(), wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("gate", [Softplus(fastest=8.0), SoftplusChannel(fastest=8.0)], ids=lambda gate: gate.kind)
def test_rates_and_steps_start_in_their_ranges(gate: Any) -> None:
    shape = Shape(hidden_size=6, heads=400, key_heads=200, head_dim=4, features=3, state_heads=400)
    parameters = started(gate, shape)
    rate, step = parameters["rate"].exp(), torch.nn.functional.softplus(parameters["bias"])
    for values, low, high, middle in ((rate, 1.0, 8.0, 4.5), (step, 0.001, 0.1, 0.01)):
        assert low * (1 - 1e-5) <= values.min()
        assert values.max() <= high * (1 + 1e-5)
        assert values.median().item() == pytest.approx(middle, rel=0.3)
    slowest = started(Softplus(fastest=0.5), shape)["rate"].exp()
    assert slowest.min() >= 0.5
    assert slowest.max() <= 1


@pytest.mark.parametrize("kind", [Softplus, SoftplusChannel])
def test_rates_may_start_from_0(kind: Any) -> None:
    shape = Shape(hidden_size=6, heads=4000, key_heads=4000, head_dim=4, features=1, state_heads=4000)
    rate = started(kind(slowest=0.0), shape)["rate"].exp()
    assert (rate < 1).float().mean().item() == pytest.approx(1 / 16, rel=0.2)
    assert 0 < rate.min() < 0.1
    assert rate.mean().item() == pytest.approx(8, rel=0.05)
    nothing = started(kind(slowest=0.0, fastest=1e-30), shape)["rate"]
    assert nothing.isfinite().all()


@pytest.mark.parametrize(
    ("spec", "slowest"),
    [("gated-deltanet", 0.0), ("gdn-hybrid", 0.0), ("deltaproduct", 0.0), ("kda-hybrid", 1.0), ("mamba2", 1.0)],
)
def test_published_layers_start_as_in_their_code(spec: str, slowest: float) -> None:
    """exp(A) starts as in flash-linear-attention: uniform from 0 to 16 in GatedDeltaNet and GatedDeltaProduct, else from 1 to
    16.
    """
    head = load_spec(spec).head
    assert head is not None
    (memory,) = head.memory
    gate = memory.gates
    assert isinstance(gate, Softplus | SoftplusChannel)
    assert (gate.slowest, gate.fastest) == (slowest, 16.0)


def test_parameters_and_operation_count_equal_a_count_by_hand() -> None:
    assert {name: fresh.shape for name, fresh in Softplus(per="key_head").parameters(SHAPE).items()} == {
        "weight": (2, 6), "bias": (2,), "rate": (2,)
    }  # fmt: skip
    assert {name: fresh.shape for name, fresh in SoftplusChannel(rank=5).parameters(SHAPE).items()} == {
        "down": (5, 6), "up": (12, 5), "bias": (12,), "rate": (4,)
    }  # fmt: skip
    assert (Softplus().flops(SHAPE, 9), SoftplusChannel(rank=5).flops(SHAPE, 9)) == (2 * 6 * 4, 2 * 5 * (6 + 12))
    assert (Softplus().key_heads(SHAPE, 2), SoftplusChannel(per="key_head").key_heads(SHAPE, 2)) == (4, 2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("gate", [Softplus(), SoftplusChannel()], ids=lambda gate: gate.kind)
def test_any_logit_gives_a_finite_decay(gate: Any, dtype: torch.dtype) -> None:
    parameters = {name: (1 if name == "rate" else 100) * tensor for name, tensor in drawn(gate, SHAPE, dtype).items()}
    decay = gate.log_decay(parameters, 100 * random(1, 40, 6, dtype=dtype), SHAPE)
    assert decay.dtype == torch.float32
    assert decay.isfinite().all()
    assert decay.max() <= 0
    assert decay.min() < -100
