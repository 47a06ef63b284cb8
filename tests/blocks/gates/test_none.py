"""The part `none` has no decay and no parameters."""

from __future__ import annotations

import torch

from blocks.gates import GATES
from blocks.gates.none import NoGate
from blocks.legend import Shape

SHAPE = Shape(hidden_size=6, heads=4, key_heads=2, head_dim=4, features=3, state_heads=2)


def test_no_gate_has_no_decay_and_no_cost() -> None:
    gate = NoGate()
    assert gate.log_decay({}, torch.zeros(1, 2, 6), SHAPE) is None
    assert gate.parameters(SHAPE) == {}
    assert gate.key_heads(SHAPE, 2) == 2
    assert gate.flops(SHAPE, 9) == 0


def test_only_the_gate_none_has_rank_none() -> None:
    assert [kind for kind, gate in GATES.items() if gate.rank_of_decay == "none"] == ["none"]
