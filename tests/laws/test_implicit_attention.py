"""A law: the weights that a head's memories imply, applied to the values, give its answer, and its memories' shares of them are 1
together. For every part and every shipped spec, and for random heads, with no word said by any of them."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from blocks.legend import Shape
from blocks.tensors import repeat_heads
from composer.graph.composition import HeadSpec
from composer.model.head import Head
from composer.model.implicit_attention import ImplicitAttention, implicit_attention
from composer.model.stepwise import HeadCall
from tests.laws.cases import SMALL, Inputs, built, complete, every_head, inputs, once, run
from tests.laws.draw import random_heads

HEADS = {**every_head(), **every_head("bidirectional")}
LENGTH = 70
SAID_APART = {"value_position", "output"}
"""What becomes of an answer when memories and read have given it."""


def given_to(head: Head, data: Inputs) -> HeadCall:
    """As a layer hands it on; what is mixed for queries and keys is left out, as it is the layer's to project."""
    return HeadCall(data.hidden, data.query, data.key, data.value, data.tokens)


@once
def assert_implied(spec: HeadSpec, shape: Shape, length: int, queries: tuple[int, ...]) -> None:
    head, data = built(spec, shape), inputs(shape, 2, length)
    found = implicit_attention(head, given_to(head, data), queries, "auto")
    total = found.total()
    values = repeat_heads(found.entered, shape.heads)
    weighed = torch.einsum("bqhs,bshd->bqhd", total, values)
    if any(memory.brings_values for memory in spec.memory):
        assert found.brought is not None
        weighed = weighed + found.brought
    scale = max(1.0, float(found.answer.abs().max()))
    torch.testing.assert_close(weighed, found.answer, rtol=0, atol=1e-5 * scale)
    assert found.error() < 1e-5
    if not shape.both_ways:
        for row, query in enumerate(found.queries):
            assert not total[:, row, :, query + 1 :].any()
    shares = torch.stack(list(found.shares().values())).sum(0)
    nothing = total.abs().sum(-1) == 0
    torch.testing.assert_close(shares, (~nothing).to(shares.dtype), rtol=0, atol=1e-9)
    assert_it_is_the_heads_answer(spec, head, data, found)


def assert_it_is_the_heads_answer(spec: HeadSpec, head: Head, data: Inputs, found: ImplicitAttention) -> None:
    if spec.output is not None or spec.value_position is not None or head._mixes:
        return
    whole, _ = run(head, data)
    scale = max(1.0, float(whole.abs().max()))
    torch.testing.assert_close(found.answer, whole[:, list(found.queries)], rtol=1e-8, atol=1e-9 * scale)


@pytest.mark.parametrize("name", HEADS)
def test_weights_give_the_answer(name: str) -> None:
    assert_implied(HEADS[name], SMALL.shape(4), LENGTH, (0, 1, 7, 40, LENGTH - 1))


@given(drawn=random_heads(), length=st.integers(1, 60), queries=st.sets(st.integers(0, 59), min_size=1, max_size=4))
def test_weights_of_random_heads_give_the_answer(drawn: tuple[HeadSpec, Shape], length: int, queries: set[int]) -> None:
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
def test_values_that_memories_bring_beside_a_cache_that_chooses(name: str, backend: str) -> None:
    """Their part is large. Where they share a denominator with the cache, it is not the answer without tokens' values, for which
    the cache would keep other pairs."""
    shape, data = SMALL.shape(4), inputs(SMALL.shape(4), 2, LENGTH)
    head = built(complete(CHOSEN[name]), shape)
    with torch.no_grad():
        for part in head.modules():
            for own, parameter in part._parameters.items():
                if own == "value" and parameter is not None:
                    parameter += 1.0
    found = implicit_attention(head, given_to(head, data), (9, 40, LENGTH - 1), backend)
    assert found.error() < 1e-9
    assert found.brought is not None
    assert float(found.brought.abs().max()) > 1e-2 * float(found.answer.abs().max())
    assert not found.brought.requires_grad
    without = given_to(head, data)
    without.value.zero_()
    with torch.no_grad():
        alone = implicit_attention(head, without, (9, 40, LENGTH - 1), backend).answer
    assert torch.allclose(alone, found.brought, rtol=1e-3) == ("delta" in found.own)
