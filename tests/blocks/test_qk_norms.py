"""Norms of queries and keys equal their formulas, exact memories see them, and RMS is √D times the length."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from blocks.qk_norms import QUERY_KEY_NORMS, Length, QueryKeyNorm, RootMeanSquare
from composer.errors import GraphError
from tests.blocks.support import GROUPED, close, computed, counted, drawn, random, started
from tests.laws.cases import SMALL, build_head, complete, inputs, run


def normed(part: QueryKeyNorm, parameters: dict[str, Tensor], **states: Tensor) -> tuple[Tensor, Tensor]:
    outputs, state = computed(part, "reference", GROUPED, parameters, counted(*states["query"].shape[:2]), {}, **states)
    assert not state
    return outputs


@pytest.mark.parametrize("learned", [True, False])
@pytest.mark.parametrize("kind", QUERY_KEY_NORMS)
def test_query_key_norms_equal_their_formula(kind: str, learned: bool) -> None:
    part: Any = QUERY_KEY_NORMS[kind].model_validate({"learned": learned, "epsilon": 0.1})
    states = {"query": random(2, 5, 4, 4), "key": random(2, 5, 2, 4)}
    parameters = drawn(part, GROUPED)
    assert bool(parameters) == learned
    for name, normed_states in zip(states, normed(part, parameters, **states), strict=True):
        for head in range(normed_states.shape[2]):
            vector, weight = states[name][1, 3, head], parameters.get(name, torch.ones(4, dtype=torch.float64))
            size = (vector**2).sum() / (4 if kind == "rms" else 1)
            own = weight if kind == "rms" else weight[head]
            close(normed_states[1, 3, head], vector / (size + 0.1) ** 0.5 * own)


def test_the_two_norms_differ_by_the_root_of_the_dimension() -> None:
    states = {"query": random(1, 3, 4, 4), "key": random(1, 3, 2, 4)}
    squares, lengths = (
        normed(part, started(part, GROUPED), **states) for part in (RootMeanSquare(epsilon=1e-30), Length(epsilon=1e-30))
    )
    for square, other in zip(squares, lengths, strict=True):
        close(square, 2 * other)


def test_norms_of_zeros_are_zero_with_finite_gradients() -> None:
    for part in (RootMeanSquare(), Length()):
        query = torch.zeros(1, 1, 4, 4, dtype=torch.float64, requires_grad=True)
        normed_states, _ = normed(part, started(part, GROUPED), query=query, key=random(1, 1, 2, 4))
        normed_states.sum().backward()
        assert torch.equal(normed_states, torch.zeros_like(normed_states))
        assert query.grad is not None
        assert query.grad.isfinite().all()


@pytest.mark.parametrize("kind", QUERY_KEY_NORMS)
def test_exact_memories_and_feature_maps_use_normed_queries_and_keys(kind: str) -> None:
    """The output does not depend on the lengths of queries and keys."""
    memories = {"memory": [{"kind": "window", "size": 5}, "state"], "feature_map": "elu", "qk_norm": kind, "position": "rope"}
    head, data = build_head(complete(memories), SMALL.shape(4)), inputs(SMALL.shape(4), 2, 17)
    before, _ = run(head, data)
    data.query, data.key = 7 * data.query, 0.2 * data.key
    close(run(head, data)[0], before, 1e-4)


def test_qk_norm_of_latents_is_refused() -> None:
    with pytest.raises(GraphError, match="no queries and keys"):
        complete({"memory": [{"kind": "latents", "size": 4}], "qk_norm": "rms"})
