"""With edges in a spec, one window may feed several memories, and all of them are read together."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from composer.graph.composition import HeadSpec
from composer.graph.wiring import build_graph
from composer.model.head import Head
from tests.composer.graph.by_hand import Document
from tests.composer.graph.heads import feed, graph_of
from tests.laws.cases import SMALL, Inputs, build_head, complete, inputs, pieces, run

SHAPE = SMALL.shape(4)
WINDOW = {"kind": "window", "size": 3}
FORK = {
    "feature_map": "elu",
    "position": "none",
    "memory": [
        {**WINDOW, "name": "near"},
        {"kind": "state", "name": "still"},
        {"kind": "state", "name": "fading", "gate": "constant", "weight": 0.25},
    ],
    "graph": ["pairs -> near", "near -> still", "near -> fading"],
}
SPARSE = {"kind": "sparse", "size": 2}
TWO_CACHES = {
    "feature_map": "hedgehog",
    "conv": {"kind": "causal", "kernel": 2},
    "memory": [
        {**WINDOW, "shape": "terraced"},
        {**SPARSE, "name": "wrong", "keep": "squared_error"},
        {"kind": "state", "name": "still", "gate": "channel"},
        {**SPARSE, "name": "over", "keep": "overestimate"},
        {"kind": "delta", "name": "steep"},
        {"kind": "delta", "name": "all", "rate": {"kind": "learned", "per": "key_head", "largest": 2}},
    ],
    "graph": ["pairs -> window", "window -> wrong", "wrong -> still", "window -> over", "over -> steep", "pairs -> all"],
    "read": "sum",
}


def by_hand(spec: HeadSpec, head: Head, data: Inputs) -> torch.Tensor:
    """Compute row by row from the definition."""
    parameters = {name: parameter.detach() for name, parameter in head.named_parameters()}
    rows = zip(*data.tensors, strict=True)
    return torch.stack([Document(spec, parameters, *tensors).outputs() for tensors in rows])


def test_two_states_below_one_window_match_their_formula() -> None:
    """o_t = (Σ_near e^(q·k/√D) v + Σ_{s ≤ t-3} (1 + γ^(t-3-s) / 4) φ(q_t)·φ(k_s) v_s) / the same without v."""
    data, length = inputs(SHAPE, 1, 12), 12
    output, _ = run(build_head(complete(FORK), SHAPE), data)
    for head in range(4):
        query, key, value = data.query[0, :, head], data.key[0, :, head // 2], data.value[0, :, head // 2]
        features = [torch.where(states > 0, states + 1, states.exp()) for states in (query, key)]
        gamma = 1 - 2.0 ** (-5 - head)
        for t in range(length):
            weights = torch.zeros(length, dtype=torch.float64)
            for s in range(t + 1):
                if s > t - 3:
                    weights[s] = (query[t] @ key[s] / math.sqrt(8)).exp()
                else:
                    weights[s] = (1 + gamma ** (t - 3 - s) / 4) * (features[0][t] @ features[1][s])
            torch.testing.assert_close(output[0, t, head], weights @ value / weights.sum(), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("head", [FORK, TWO_CACHES], ids=["two states", "two caches"])
@pytest.mark.parametrize("bounds", [(), (1, 4, 9), tuple(range(1, 16))], ids=["whole", "uneven", "one by one"])
def test_heads_with_edges_match_their_definition_in_any_split(head: dict[str, Any], bounds: tuple[int, ...]) -> None:
    spec, data = complete(head), inputs(SHAPE, 2, 16)
    module, state, outputs = build_head(spec, SHAPE), None, []
    for piece in pieces(16, bounds):
        output, state = run(module, data.cut(piece), state)
        outputs.append(output)
    torch.testing.assert_close(torch.cat(outputs, dim=1), by_hand(spec, module, data), rtol=1e-9, atol=1e-9)


def test_windows_pass_only_the_inputs_that_memories_below_need() -> None:
    graph = graph_of(TWO_CACHES)
    travel = {name: graph.nodes[name].shape.numbers for name in ("window", "wrong", "over")}
    numbers = {name: {number.name: number.heads for number in own} for name, own in travel.items()}
    assert numbers["window"] == {"steep_rate": 4, "wrong_error": 4, "over_error": 4}
    assert numbers["wrong"] == {"wrong_error": 4}
    assert numbers["over"] == {"steep_rate": 4, "over_error": 4}
    summed = {edge.label: edge.start for edge in graph.into("window", "features")}
    assert summed == {"wrong_error": "still_features", "over_error": "steep_features"}
    assert {number.name for number in travel["window"] if number.error is not None} == summed.keys()
    assert feed(graph, "still", "pairs") == [("wrong", "evicted")]
    assert feed(graph, "all", "pairs") == [("pairs", "pairs")]


def test_memory_names_may_equal_parameter_names() -> None:
    """Names of parts inside the program cannot collide with names in a spec."""
    memory = [{**WINDOW, "weight": "learned"}, {"kind": "state", "weight": "learned"}]
    data, plain = inputs(SHAPE, 1, 9), {"feature_map": "elu", "memory": memory}
    named = {**plain, "memory": [memory[0], {**memory[1], "name": "window_weight"}]}
    actual, expected = (run(build_head(complete(head), SHAPE), data)[0] for head in (named, plain))
    assert torch.equal(actual, expected)


def test_a_chain_of_edges_equals_the_cascade() -> None:
    chain = {"feature_map": "elu", "memory": [{**WINDOW, "weight": "learned"}, {**SPARSE, "weight": "same"}, {"kind": "state"}]}
    edges = {**chain, "graph": ["sparse -> state", "window -> sparse", "pairs -> window"]}
    data = inputs(SHAPE, 2, 20)
    actual, expected = (run(build_head(complete(head), SHAPE), data)[0] for head in (edges, chain))
    assert torch.equal(actual, expected)
    cascade, drawn = (build_graph(complete(head), SHAPE) for head in (chain, edges))
    assert set(cascade.edges) == set(drawn.edges)
