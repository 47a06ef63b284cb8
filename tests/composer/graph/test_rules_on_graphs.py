"""Rules on random heads, on graphs that no spec describes, and on bidirectional heads."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blocks.operation import Kind
from blocks.part import Problem
from composer.errors import GraphError
from composer.graph.graph import Edge, HeadGraph
from composer.graph.rules import IDLE, RULES, SIZES, check_graph, edge_problems
from composer.graph.wiring import build_graph
from composer.model.head import Head
from composer.spec.loading import load_spec
from composer.spec.resolve import complete_head, resolve
from tests.composer.graph.heads import SIZE, resolved
from tests.composer.graph.random_heads import HEADS, head_of
from tests.composer.graph.refusals import refused

WINDOW, STATE, FULL = {"kind": "window", "size": 4}, {"kind": "state"}, {"kind": "full"}
DROP, LATENTS = {**WINDOW, "evict": "drop"}, {"kind": "latents", "size": 8}
LOLCATS = {"feature_map": "elu", "memory": [WINDOW, STATE]}
SPARSE = {"kind": "sparse", "size": 3}


def problems_of(graph: HeadGraph) -> list[Problem]:
    return [problem for rule in (*RULES, *SIZES, *IDLE) for problem in rule(graph)]


@given(fields=HEADS, both_ways=st.booleans())
@settings(max_examples=max(40, settings.default.max_examples))
def test_every_rule_terminates_on_random_heads(fields: dict[str, Any], both_ways: bool) -> None:
    """Every rule terminates, also on heads that another rule has rejected. A head is rejected if a rule reports a problem."""
    whole = head_of(fields)
    if whole is None:
        return
    head, shape = complete_head(whole, SIZE), replace(SIZE.shape(4), both_ways=both_ways)
    if list(edge_problems(head)):
        return
    graph = build_graph(head, shape)
    wrong = problems_of(graph)
    assert all(message and set(where) for message, where in wrong)
    if not wrong:
        assert check_graph(head, shape, ()) is graph
        Head(head, shape)
        return
    with pytest.raises(GraphError) as caught:
        check_graph(head, shape, ("head",))
    assert (str(caught.value), caught.value.path) == (wrong[0][0], ("head", *wrong[0][1]))


def test_edges_between_ports_of_different_sizes_are_refused() -> None:
    """No spec creates such an edge, but a new part may."""
    graph = build_graph(resolved(LOLCATS).heads["head"], SIZE.shape(4))
    place = next(index for index, edge in enumerate(graph.edges) if (edge.start, edge.end) == ("state_features", "state"))

    def problems_with(*edges: Edge) -> list[Problem]:
        return problems_of(replace(graph, edges=(*graph.edges[:place], *edges, *graph.edges[place + 1 :])))

    edge = graph.edges[place]
    assert problems_with(edge) == []
    several = "; ".join(("query is the input, and it reads features", "3 heads, and it reads 4", "5 coordinates, and it reads 8"))
    assert problems_with(replace(edge, kind=Kind.QUERY, heads=3, dim=5)) == [
        (f"`state_features` does not fit `state`: {several}", ("memory", 1))
    ]
    assert problems_with(edge, edge) == [
        ("`state` reads one features, and `state_features`, `state_features` return it", ("memory", 1))
    ]
    message, where = problems_with()[0]
    assert (message.partition(",")[0], where) == ("a `state` memory reads features", ("memory", 1))


@pytest.mark.parametrize(
    ("head", "path", "advice"),
    [
        ({"memory": [WINDOW]}, None, ""),
        ({"memory": [WINDOW, FULL], "flow": "parallel"}, None, ""),
        (
            {"memory": [WINDOW, FULL]},
            ("flow",),
            "memories of a bidirectional head evict no pairs, as every token sees all others; set `flow: parallel`",
        ),
        ({"memory": [FULL], "graph": ["pairs -> full"]}, ("graph",), "as every token sees all others; remove `graph`"),
        (
            {"memory": [WINDOW, FULL], "graph": ["pairs -> window", "pairs -> full"]},
            ("graph",),
            "remove `graph`, and set `flow: parallel`",
        ),
    ],
)
def test_bidirectional_heads_with_causal_parts_are_refused(head: dict[str, Any], path: tuple[str, ...] | None, advice: str) -> None:
    spec = load_spec({"compose": 1, "name": "x", "direction": "bidirectional", "head": head})
    if path is None:
        resolve(spec, SIZE)
        return
    with pytest.raises(GraphError) as caught:
        resolve(spec, SIZE)
    assert caught.value.path == ("head", *path)
    assert str(caught.value).endswith(advice)


def test_edges_to_latents_alone_are_refused() -> None:
    assert str(refused({"memory": [LATENTS], "graph": ["pairs -> latents"]})).endswith("no pairs; remove `graph`")
