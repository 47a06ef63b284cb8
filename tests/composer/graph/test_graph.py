"""The graph of a head has the parts and edges of the paper's figure, each with its kind and width."""

from __future__ import annotations

import networkx
import pytest

from composer.graph.graph import INPUTS, HeadGraph, pairs_of, takers_of
from composer.graph.wiring import build_graph
from tests.composer.graph.heads import SIZE, feed, graph_of, shipped
from tests.shipped import FEW

WINDOW, STATE = {"kind": "window", "size": 4}, {"kind": "state"}


def edges(graph: HeadGraph) -> set[tuple[str, str, str, int, int]]:
    return {(edge.start, edge.end, str(edge.kind), edge.heads, edge.dim) for edge in graph.edges}


def test_in_lolcats_the_window_evicts_pairs_into_the_state() -> None:
    resolved = shipped("lolcats")
    graph = build_graph(resolved.heads["head"], SIZE.shape(4))
    assert edges(graph) == {
        ("key", "pairs", "key", 2, 8),
        ("value", "pairs", "value", 2, 8),
        ("query", "window", "query", 4, 8),
        ("pairs", "window", "pairs", 2, 8),
        ("query", "state_features", "query", 4, 8),
        ("window", "state_keys", "pairs", 2, 8),  # what the window evicts
        ("state_keys", "state", "key features", 4, 128),
        ("window", "state", "pairs", 2, 8),
        ("state_features", "state", "features", 4, 128),  # softmax(xW) ‖ softmax(-xW), one map a query head
        ("hidden", "window.weight", "hidden", 1, 24),
        ("window.weight", "read", "weight", 4, 1),
        ("window", "read", "partial", 4, 8),
        ("state", "read", "partial", 4, 8),
        ("read", "output", "output", 4, 8),
    }
    kinds = {node.name: node.kind for node in graph.parts if node.path is not None}
    assert kinds == {"window": "window", "state_features": "hedgehog", "state": "state", "read": "shared"}
    assert {node.name for node in graph.parts if node.path is None} == {"pairs", "window.weight", "state_keys"}, (
        "no spec says these"
    )
    assert feed(graph, "read", "partial") == [("window", "partial"), ("state", "partial")]
    assert feed(graph, "state", "pairs") == [("window", "evicted")]


def test_in_lawcat_queries_and_keys_are_convolved_before_the_state() -> None:
    graph = build_graph(shipped("lawcat").heads["head"], SIZE.shape(4))
    assert edges(graph) == {
        ("query", "conv", "query", 4, 8),
        ("key", "conv", "key", 2, 8),
        ("key", "pairs", "key", 2, 8),
        ("conv", "pairs", "key", 4, 8),  # one filter a query head
        ("value", "pairs", "value", 2, 8),
        ("conv", "state_features", "query", 4, 8),
        ("pairs", "state_keys", "pairs", 2, 8),
        ("state_keys", "state", "key features", 4, 16),
        ("pairs", "state", "pairs", 2, 8),
        ("state_features", "state", "features", 4, 16),
        ("hidden", "state_gate", "hidden", 1, 24),
        ("state_gate", "state", "decay", 4, 16),
        ("state", "read", "partial", 4, 8),
        ("read", "output", "output", 4, 8),
    }
    assert feed(graph, "pairs", "key") == [("key", "key")]
    assert feed(graph, "pairs", "convolved") == [("conv", "key")]


def test_in_hybrid_the_first_and_last_layer_have_full_attention() -> None:
    resolved = shipped("hybrid")
    assert [[group.head for group in layer] for layer in resolved.layers] == [["exact"], ["head"], ["head"], ["exact"]]
    assert edges(build_graph(resolved.heads["exact"], SIZE.shape(4))) == {
        ("key", "pairs", "key", 2, 8),
        ("value", "pairs", "value", 2, 8),
        ("query", "full", "query", 4, 8),
        ("pairs", "full", "pairs", 2, 8),
        ("full", "read", "partial", 4, 8),
        ("read", "output", "output", 4, 8),
    }
    lolcats = build_graph(shipped("lolcats").heads["head"], SIZE.shape(4))
    assert edges(build_graph(resolved.heads["head"], SIZE.shape(4))) == edges(lolcats)


def test_in_parallel_every_memory_sees_every_pair() -> None:
    graph = graph_of({"feature_map": "elu", "memory": [WINDOW, STATE], "flow": "parallel"})
    assert feed(graph, "window", "pairs") == feed(graph, "state", "pairs") == [("pairs", "pairs")]


def test_evicted_pairs_pass_through_all_memories_of_a_cascade() -> None:
    near, far = {**WINDOW, "name": "near"}, {**WINDOW, "name": "far", "size": 9}
    graph = graph_of({"feature_map": "elu", "memory": [near, far, STATE]})
    assert [feed(graph, node, "pairs") for node in ("near", "far", "state")] == [
        [("pairs", "pairs")],
        [("near", "evicted")],
        [("far", "evicted")],
    ]
    assert [node.name for node, _ in graph.memories] == ["near", "far", "state"]


def test_two_states_share_one_map_and_have_separate_gates() -> None:
    memory = [{"kind": "state", "name": name, "gate": "head"} for name in ("slow", "fast")]
    graph = graph_of({"feature_map": "hedgehog", "memory": memory, "flow": "parallel"})
    assert {graph.nodes[f"{name}_features"].module for name in ("slow", "fast")} == {"feature_map"}
    assert [graph.nodes[f"{name}_gate"].path for name in ("slow", "fast")] == [("memory", 0, "gate"), ("memory", 1, "gate")]
    assert {node.name for node in graph.parts} == {"pairs", "slow", "fast", "read"} | {
        f"{name}_{kind}" for name in ("slow", "fast") for kind in ("features", "keys", "gate")
    }


@pytest.mark.parametrize(
    ("head", "features", "state_heads", "convolved"),
    [
        ({"feature_map": "elu"}, 8, 2, 0),
        ({"feature_map": {"kind": "elu", "linear": True}}, 8, 4, 0),
        ({"feature_map": {"kind": "hedgehog", "per": "key_head", "dim": 5}}, 10, 2, 0),
        ({"feature_map": "relu", "conv": {}}, 8, 4, 4),
        ({"feature_map": "relu", "conv": {"per": "key_head"}}, 8, 2, 2),
        ({"feature_map": "relu", "conv": {"inputs": ["q"]}}, 8, 2, 0),
        ({"feature_map": {"kind": "exp", "two_sided": False}, "memory": [{**STATE, "gate": "constant"}]}, 8, 4, 0),
        ({"feature_map": "elu", "memory": [{**STATE, "gate": "constant"}]}, 8, 4, 0),
        ({"feature_map": "elu", "memory": [{**STATE, "gate": "slopes"}]}, 8, 4, 0),
        ({"feature_map": "elu", "memory": [{**STATE, "gate": {"kind": "constant", "per": "key_head"}}]}, 8, 2, 0),
        ({"feature_map": "elu", "memory": [{**STATE, "gate": {"kind": "slopes", "per": "key_head"}}]}, 8, 2, 0),
        ({"feature_map": "elu", "memory": [{**STATE, "gate": "head"}]}, 8, 4, 0),
        ({"feature_map": "elu", "memory": [{**STATE, "gate": {"kind": "channel", "per": "key_head"}}]}, 8, 2, 0),
    ],
    ids=str,
)
def test_states_have_a_head_for_each_distinct_key_or_decay(head: dict, features: int, state_heads: int, convolved: int) -> None:
    """A state has as many heads as there are different keys or decays. A map, a convolution or a gate per query head makes this
    H.
    """
    head = {**head, "conv": {"kind": "causal", **head["conv"]}} if "conv" in head else head
    graph = graph_of({"memory": [STATE], **head})
    shape = graph.nodes["state"].shape
    assert (shape.features, shape.state_heads, shape.convolved_heads) == (features, state_heads, convolved)
    assert shape.exponential is (graph.nodes["state_features"].kind == "exp")


def test_a_window_keeps_convolved_keys_only_for_features_below() -> None:
    head = {"feature_map": "elu", "conv": "causal", "memory": [WINDOW, STATE]}
    assert graph_of(head).nodes["window"].shape.convolved_heads == 4
    assert graph_of({**head, "flow": "parallel"}).nodes["window"].shape.convolved_heads == 0
    assert graph_of({**head, "conv": None}).nodes["window"].shape.convolved_heads == 0


@pytest.mark.parametrize(
    ("head", "mass", "every_pair"),
    [
        ({"memory": ["full"]}, False, True),
        ({"memory": [WINDOW, "full"], "flow": "parallel", "read": "mixture"}, False, True),
        ({"memory": [WINDOW, "full"], "flow": "parallel", "read": "shared"}, True, True),
        ({"memory": [WINDOW, "full"], "read": "mixture"}, False, False),
        ({"memory": [WINDOW, "full"], "read": "sum"}, True, False),
    ],
    ids=str,
)
def test_reads_need_masses_and_memories_receive_every_pair_of_the_call(head: dict, mass: bool, every_pair: bool) -> None:
    graph = graph_of(head)
    assert [not taker.leaves_masses_out for taker in takers_of(graph, "full")] == [mass]
    assert pairs_of(graph, "full")["every_pair"] is every_pair


@pytest.mark.parametrize("name", FEW)
def test_every_shipped_graph_flows_from_the_projections_to_the_output(name: str) -> None:
    resolved = shipped(name)
    for head in resolved.heads.values():
        graph = build_graph(head, resolved.shape(4))
        assert networkx.is_directed_acyclic_graph(graph.network)
        assert networkx.descendants(graph.network, "value") >= {node.name for node, _ in graph.memories} | {"output"}
        used = networkx.ancestors(graph.network, "output")
        assert used >= {node.name for node in graph.parts}
        document = head.model_dump()
        for node in graph.parts:
            if node.path is None:
                assert node.kind in {"entry", "alone"} or not node.main, "a part outside of the spec"
                continue
            document_node = document
            for step in node.path:
                document_node = document_node[step]
            assert document_node["kind"] == node.kind


@pytest.mark.parametrize("name", FEW)
def test_the_order_of_a_graph_is_that_of_its_flow(name: str) -> None:
    resolved = shipped(name)
    for head in resolved.heads.values():
        graph = build_graph(head, resolved.shape(4))
        place = {node.name: index for index, node in enumerate(graph.order)}
        assert place.keys() == graph.nodes.keys()
        assert all(place[edge.start] < place[edge.end] for edge in graph.edges)
        assert graph.parts == tuple(node for node in graph.order if node.name not in {*INPUTS, "output"})


def test_mixers_of_projections_come_before_them() -> None:
    """A mixer that feeds the projections comes before them. A mixer that feeds parts that read the inputs does not."""
    qk = {"feature_map": "elu", "memory": [STATE], "mix_input": {"kind": "conv", "feeds": "qk"}}
    inputs = {"memory": [{**WINDOW, "weight": "token"}, "full"], "mix_input": "conv", "flow": "parallel"}
    assert graph_of(qk).before_projections() == {"mix_input"}
    assert graph_of(inputs).before_projections() == set()
