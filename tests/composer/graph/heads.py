"""Heads of small sizes for the tests of the graph."""

from __future__ import annotations

from typing import Any

from composer.graph.graph import HeadGraph
from composer.graph.wiring import build_graph
from composer.spec.loading import load_spec
from composer.spec.resolve import Dimensions, Resolved, resolve
from tests.shipped import on

SIZE = Dimensions(hidden_size=24, layers=4, heads=4, key_heads=2, head_dim=8, rope_theta=100.0)


def resolved(head: dict[str, Any], size: Dimensions = SIZE) -> Resolved:
    """Return a resolved spec of this one head."""
    return resolve(load_spec({"compose": 1, "name": "case", "head": head}), size)


def graph_of(head: dict[str, Any], size: Dimensions = SIZE) -> HeadGraph:
    """Return the graph of this head in a whole layer."""
    return build_graph(resolved(head, size).heads["head"], size.shape(size.heads))


def feed(graph: HeadGraph, node: str, port: str) -> list[tuple[str, str]]:
    """Return the node and the port that a port of a node reads."""
    return [(edge.start, edge.output) for edge in graph.into(node, port)]


def shipped(name: str, size: Dimensions = SIZE) -> Resolved:
    """Return a shipped spec resolved on these dimensions."""
    return on(name, size)
