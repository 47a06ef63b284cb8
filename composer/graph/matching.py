"""Finds the patterns of the catalogue in a head's graph."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

from blocks.catalogue import PATTERNS
from blocks.operation import Kind
from blocks.pattern import Pattern
from composer.graph.graph import HeadGraph, Node


def matches(graph: HeadGraph) -> Iterator[tuple[Pattern, Mapping[str, str]]]:
    """Yield the places of patterns in the graph: the node for each of a pattern's names, in the pattern's order."""
    for pattern in PATTERNS:
        for match in _places(graph, pattern):
            yield pattern, match


@lru_cache(maxsize=8192)
def _places(graph: HeadGraph, pattern: Pattern) -> tuple[Mapping[str, str], ...]:
    """Searched once, as places depend on no backend and no setting."""
    return tuple(_search(graph, pattern))


def _search(graph: HeadGraph, pattern: Pattern) -> Iterator[Mapping[str, str]]:
    import networkx
    from networkx.algorithms.isomorphism import MultiDiGraphMatcher

    wanted = networkx.MultiDiGraph()
    wanted.add_nodes_from((name, {"is": is_match}) for name, is_match in pattern.nodes.items())
    wanted.add_edges_from((start, end, {"kind": kind}) for start, end, kind in pattern.edges)
    matcher = MultiDiGraphMatcher(graph.network, wanted, node_match=_is_node, edge_match=_has_edges)
    for match in matcher.subgraph_monomorphisms_iter():
        by_name = {node: name for name, node in match.items()}
        fits = pattern.where({node: graph.nodes[name].options for node, name in by_name.items()})
        if fits and (not pattern.whole or _whole(graph, [by_name[node] for node in pattern.nodes])):
            yield {node: by_name[node] for node in pattern.nodes}


def _whole(graph: HeadGraph, names: list[str]) -> bool:
    """Whether the outputs of these nodes, except the last node's, are read only by each other, and no other partial enters them."""
    is_closed = all(edge.end in names for name in names[:-1] for edge in graph.out_of(name))
    return is_closed and all(edge.start in names for name in names for edge in graph.into(name) if edge.kind is Kind.PARTIAL)


def _is_node(attributes: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    node: Node = attributes["of"]
    return node.part is not None and wanted["is"](node.part)


def _has_edges(edges: Mapping[int, Mapping[str, Any]], wanted: Mapping[int, Mapping[str, Any]]) -> bool:
    kinds = [edge["of"].kind for edge in edges.values()]
    return all(edge["kind"] in kinds for edge in wanted.values())
