"""A law: the implied weights of a head, applied to the values, give its output, and the shares of its memories sum to 1. It
holds for every part, every shipped spec and random heads, without special code in any part.
"""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from blocks.legend import Shape
from composer.graph.composition import HeadSpec
from composer.laws.definition import LENGTH, assert_implied
from composer.model.implicit_attention import implicit_attention
from tests.covers import some
from tests.laws.cases import SMALL, build_head, complete, covering, every_head, inputs
from tests.laws.draw import random_heads

BOTH_WAYS = every_head("bidirectional")
HEADS = every_head() | BOTH_WAYS


@pytest.mark.parametrize("name", some(HEADS, covering() | BOTH_WAYS.keys()))
def test_implied_weights_reproduce_the_output(name: str) -> None:
    assert_implied(HEADS[name], SMALL.shape(4), LENGTH, (0, 1, 7, 40, LENGTH - 1))


@given(drawn=random_heads(), length=st.integers(1, 60), queries=st.sets(st.integers(0, 59), min_size=1, max_size=4))
def test_implied_weights_of_random_heads_reproduce_the_output(
    drawn: tuple[HeadSpec, Shape], length: int, queries: set[int]
) -> None:
    assert_implied(*drawn, length, tuple(sorted(query % length for query in queries)))


CHOSEN = {
    "learned pairs above a cache above a state": {
        "position": "none",
        "feature_map": "elu",
        "memory": ["meta", {"kind": "window", "size": 8}, {"kind": "sparse", "size": 4}, "state"],
    },
    "a cache above a state beside further steps": {
        "position": "none",
        "feature_map": "elu",
        "memory": [
            {"kind": "window", "size": 8},
            {"kind": "sparse", "size": 4},
            "state",
            {"kind": "delta", "steps": 3, "gate": "head"},
        ],
        "graph": ["pairs -> window", "window -> sparse", "sparse -> state", "pairs -> delta"],
        "read": "sum",
    },
}
"""What a cache keeps turns on values, some of which no token has."""


@pytest.mark.parametrize("backend", ["auto", "reference"])
@pytest.mark.parametrize("name", CHOSEN)
def test_learned_values_beside_a_sparse_cache_are_part_of_the_output(name: str, backend: str) -> None:
    """Their share is large. With a denominator shared with the cache, it is not the output for values of 0, for which the cache
    would keep other pairs.
    """
    shape, data = SMALL.shape(4), inputs(SMALL.shape(4), 2, LENGTH)
    head = build_head(complete(CHOSEN[name]), shape)
    with torch.no_grad():
        for part in head.modules():
            for own, parameter in part._parameters.items():
                if own == "value" and parameter is not None:
                    parameter += 1.0
    weights = implicit_attention(head, data.of_head(), (9, 40, LENGTH - 1), backend)
    assert weights.error() < 1e-9
    assert weights.brought is not None
    assert float(weights.brought.abs().max()) > 1e-2 * float(weights.output.abs().max())
    assert not weights.brought.requires_grad
    without = data.of_head()
    without.value.zero_()
    with torch.no_grad():
        alone = implicit_attention(head, without, (9, 40, LENGTH - 1), backend).output
    assert torch.allclose(alone, weights.brought, rtol=1e-3) == ("delta" in weights.memory_weights)
