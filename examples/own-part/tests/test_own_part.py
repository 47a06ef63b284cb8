"""The memory holds every n-th pair and evicts all others, and the gate is always between its two rates."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from own_part import Between

from composer.laws.cases import SMALL, build_head, complete, inputs, run

EVERY, SIZE = 3, 2


def test_queries_see_the_last_multiples() -> None:
    memory = {"kind": "own_part.strided", "every": EVERY, "size": SIZE, "evict": "drop"}
    data, shape = inputs(SMALL.shape(4), 2, 17), SMALL.shape(4)
    output, state = run(build_head(complete({"position": "none", "memory": [memory]}), shape), data)
    for token in range(17):
        seen = [position for position in range(token + 1) if position % EVERY == 0][-SIZE:]
        for head in range(4):
            scores = (data.key[:, seen, head // 2] * data.query[:, token, None, head]).sum(-1) / math.sqrt(8)
            expected = (scores.softmax(1)[..., None] * data.value[:, seen, head // 2]).sum(1)
            torch.testing.assert_close(output[:, token, head], expected, rtol=1e-12, atol=1e-12)
    assert state["own_part_strided.position"].tolist() == [[12, 15]] * 2


def test_all_other_pairs_are_in_the_state_below() -> None:
    memory = [{"kind": "own_part.strided", "every": EVERY, "size": SIZE}, {"kind": "state", "normalise": False}]
    head = {"position": "none", "feature_map": {"kind": "elu"}, "memory": memory, "read": "sum"}
    data, shape = inputs(SMALL.shape(4), 1, 17), SMALL.shape(4)
    _, state = run(build_head(complete(head), shape), data)
    evicted = [position for position in range(17) if position not in (12, 15)]
    features = torch.nn.functional.elu(data.key[:, evicted]) + 1
    expected = torch.einsum("bekf,bekd->bkfd", features, data.value[:, evicted])
    (name,) = (name for name, tensor in state.items() if name.startswith("state.") and tensor.shape == expected.shape)
    torch.testing.assert_close(state[name], expected, rtol=1e-10, atol=1e-10)


def test_the_gate_stays_between_its_rates() -> None:
    gate, shape = Between(slowest=0.1, fastest=0.3), replace(SMALL.shape(4), state_heads=4)
    weight = {"weight": torch.eye(4, SMALL.hidden_size).double() * 1e3, "bias": torch.zeros(4).double()}
    hidden = torch.randn(2, 50, SMALL.hidden_size, dtype=torch.float64)
    decay = gate.log_decay(weight, hidden, shape)
    torch.testing.assert_close(decay.amin(), torch.tensor(-0.3).double(), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(decay.amax(), torch.tensor(-0.1).double(), rtol=1e-6, atol=1e-6)
