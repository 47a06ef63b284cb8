"""MesaNet's state solves its regression for any memory above it, and rejects unsupported options."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from blocks.legend import Shape
from blocks.memories.mesa import Mesa
from composer.errors import GraphError
from tests.blocks.support import close, started
from tests.laws.cases import SMALL, build_head, complete, inputs, run

SHAPE = Shape(hidden_size=6, heads=4, key_heads=2, head_dim=3, features=5, state_heads=2)
HEAD: dict[str, Any] = {"position": "none", "feature_map": "identity", "memory": [{"kind": "mesa"}]}
WINDOW = {"kind": "window", "size": 5}


def test_the_state_solves_a_regression_over_the_evicted_pairs() -> None:
    """Below a window, without decay, the state solves the regression over the evicted pairs: rows √β k and √β v, and rows √Λ for
    the penalty.
    """
    memory = {"kind": "mesa", "gate": "none", "rate": {"kind": "fixed", "value": 0.5}}
    head, data = (
        build_head(complete(HEAD | {"memory": [WINDOW, memory], "read": "sum"}), SMALL.shape(4)),
        inputs(SMALL.shape(4), 1, 30),
    )
    alone = build_head(complete({"position": "none", "memory": [WINDOW | {"evict": "drop"}]}), SMALL.shape(4))
    actual = (run(head, data)[0] - run(alone, data)[0])[0, -1]
    penalty = 0.25 + torch.nn.functional.softplus(head.get_parameter("mesa.penalty"))
    for query_head in range(4):
        own = query_head // 2
        key = torch.nn.functional.normalize(data.key[0, :25, own], dim=-1)
        rows = torch.cat((0.5**0.5 * key, torch.diag(penalty[own].sqrt())))
        values = torch.cat((0.5**0.5 * data.value[0, :25, own], torch.zeros(8, 8, dtype=torch.float64)))
        wanted = torch.nn.functional.normalize(data.query[0, -1, query_head], dim=-1) @ torch.linalg.lstsq(rows, values).solution
        close(actual[query_head], wanted)


def test_penalty_state_and_operation_count_equal_a_count_by_hand() -> None:
    (slot,) = Mesa().state(SHAPE).values()
    assert slot.bytes(2) == 2 * 5 * (5 + 3) * 4
    penalty = started(Mesa(), SHAPE)["penalty"]
    assert penalty.shape == (2, 5)
    close(0.25 + torch.nn.functional.softplus(penalty), torch.ones(2, 5), 1e-6)
    assert started(Mesa(smallest=3.0), SHAPE)["penalty"].isfinite().all()
    # Two states of 5 × 8 numbers: the sums, the decay, and a system of 5; the reads of 4 queries.
    assert Mesa().flops(SHAPE, 9) == 2 * (80 + 40 + 2 * 125 // 3) + 4 * 80
    assert Mesa().prefill_flops(SHAPE, 64) == Mesa().prefill_flops(SHAPE, 10_000) > Mesa().prefill_flops(SHAPE, 10)


def test_a_sparse_cache_above_mesa_is_refused() -> None:
    sparse = {"kind": "sparse", "size": 4, "keep": "recent"}
    with pytest.raises(GraphError, match="a cache above it would solve"):
        complete(HEAD | {"memory": [WINDOW, sparse, {"kind": "mesa"}], "read": "sum"})


@pytest.mark.parametrize("gate", ["channel", "from_key"])
def test_decay_by_feature_is_refused(gate: str) -> None:
    with pytest.raises(GraphError, match="which a `mesa` memory does not support"):
        complete(HEAD | {"memory": [{"kind": "mesa", "gate": gate}]})
