"""Log-linear attention starts as a `state`, weighs its levels, and rejects unsupported options."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from blocks.legend import Shape
from blocks.memories.log_linear import LogLinear
from composer.errors import GraphError
from composer.laws.cases import build_head
from tests.blocks.support import close
from tests.laws.cases import SMALL, complete, inputs, run

SHAPE = Shape(hidden_size=6, heads=4, key_heads=2, head_dim=3, features=5, state_heads=2)
HEAD: dict[str, Any] = {"position": "none", "feature_map": "relu", "memory": [{"kind": "log_linear", "name": "state"}]}


def outputs(memory: dict[str, Any], noise: float = 0.0) -> torch.Tensor:
    head = build_head(complete(HEAD | {"memory": [{"name": "state", **memory}]}), SMALL.shape(4), noise=noise)
    return run(head, inputs(SMALL.shape(4), 2, 80))[0]


@pytest.mark.parametrize("gate", ["none", "softplus"])
@pytest.mark.parametrize("normalise", [True, False])
def test_a_new_memory_equals_a_state_with_the_same_gate(gate: str, normalise: bool) -> None:
    options = {"gate": gate, "normalise": normalise}
    close(outputs({"kind": "log_linear", **options}), outputs({"kind": "state", **options}), 1e-9)


def test_weights_of_levels_change_the_output() -> None:
    difference = (outputs({"kind": "log_linear"}, noise=0.3) - outputs({"kind": "state"}, noise=0.3)).abs().max(dim=-1).values
    assert (difference[:, 0] < 1e-9).all(), "the first token sees its own pair alone, whose weight cancels"
    assert (difference[:, 2:].amax(-1) > 1e-3).all()


def test_state_and_operation_count_equal_a_count_by_hand() -> None:
    memory = LogLinear(levels=6)
    state, newest = memory.state(SHAPE).values()
    assert (state.shape, newest.shape) == ((2, 6, 5, 3 + 1), (1,))
    # Each level is read by 4 queries, with 4 weights; the pair of 2 key heads enters one level.
    assert memory.flops(SHAPE, 9) == 4 * 6 * (40 + 12) + 2 * 40
    assert memory.prefill_flops(SHAPE, 64) == memory.prefill_flops(SHAPE, 10_000) > memory.prefill_flops(SHAPE, 10)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"memory": [{"kind": "window", "size": 5}, {"kind": "log_linear"}], "read": "shared"}, "its levels count tokens"),
        ({"memory": [{"kind": "log_linear", "gate": "channel"}]}, "which a `log_linear` memory does not support"),
        ({"feature_map": "exp"}, "exponentials without a bound"),
        ({"feature_map": "identity"}, "features of this map can be negative"),
    ],
)
def test_unsupported_heads_are_refused(changes: dict[str, Any], problem: str) -> None:
    with pytest.raises(GraphError, match=problem):
        build_head(complete(HEAD | changes), SMALL.shape(4))
