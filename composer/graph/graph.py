"""The graph of one head: nodes are parts, edges carry what flows between them, with its kind and dimensions.

Kinds of edges: hidden, query, key, value, pairs (those that enter, or that a memory evicts), features, decay, partial, output.
The short form of a spec becomes this graph; ``rules`` refuses what cannot mean anything, ``composer.model.head`` compiles the
rest into plain calls, once.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import networkx

from blocks.legend import Shape
from blocks.memories.base import Memory
from blocks.memories.state import StateMemory
from blocks.part import Part
from blocks.reads import Read

if TYPE_CHECKING:
    from composer.spec.document import HeadSpec

HeadGraph = networkx.MultiDiGraph
SOURCES = ("hidden", "query", "key", "value")


def build_graph(head: HeadSpec, shape: Shape) -> HeadGraph:
    """The graph of ``head`` on a group of heads of this shape. Every part's node has its own ``shape`` and its ``path``."""
    graph = HeadGraph()
    graph.add_nodes_from(SOURCES, part=None)
    convolved = head.conv.key_heads(shape) if head.conv and "k" in head.conv.inputs else 0
    query = "query"
    if head.conv:
        _add(graph, "conv", head.conv, shape, ("conv",))
        _connect(graph, "query", "conv", "query", shape.heads, shape.head_dim)
        _connect(graph, "key", "conv", "key", shape.key_heads, shape.head_dim)
        query = "conv"
    graph.add_node("pairs", part=None)
    _connect(graph, "key", "pairs", "key", shape.key_heads, shape.head_dim)
    if convolved:
        _connect(graph, "conv", "pairs", "key", convolved, shape.head_dim)
    _connect(graph, "value", "pairs", "value", shape.key_heads, shape.head_dim)

    holder = "pairs"
    for index, memory in enumerate(head.memory):
        name = memory.name or memory.kind
        path = ("memory", index)
        if isinstance(memory, StateMemory):
            _add_state(graph, head, memory, name, replace(shape, convolved_heads=convolved), (query, holder), path)
        else:
            below = head.memory[index + 1 :] if head.flow == "cascade" else ()
            carries = convolved if any(lower.reads == "features" for lower in below) else 0
            _add(graph, name, memory, replace(shape, convolved_heads=carries), path)
            _connect(graph, "query", name, "query", shape.heads, shape.head_dim)
            _connect(graph, holder, name, "pairs", shape.key_heads, shape.head_dim)
        if head.flow == "cascade":
            holder = name

    graph.add_node("output", part=None)
    names = [memory.name or memory.kind for memory in head.memory]
    answer, kind = names[0], "partial"
    if head.read is not None:
        _add(graph, "read", head.read, shape, ("read",))
        for name in names:
            _connect(graph, name, "read", "partial", shape.heads, shape.head_dim)
        answer, kind = "read", "output"
    if head.output is not None:
        _add(graph, "output_norm", head.output, shape, ("output",))
        _connect(graph, answer, "output_norm", kind, shape.heads, shape.head_dim)
        _connect(graph, "hidden", "output_norm", "hidden", 1, shape.hidden_size)
        answer, kind = "output_norm", "output"
    _connect(graph, answer, "output", kind, shape.heads, shape.head_dim)
    return graph


def _add_state(
    graph: HeadGraph,
    head: HeadSpec,
    memory: StateMemory,
    name: str,
    shape: Shape,
    feeds: tuple[str, str],
    path: tuple[str | int, ...],
) -> None:
    """A state memory with what stands above it: its features and, where it has one, its gate."""
    mapping = head.feature_map
    incoming = shape.convolved_heads or shape.key_heads
    features = mapping.features(shape) if mapping else 0
    mapped = mapping.key_heads(shape, incoming) if mapping else incoming
    shape = replace(
        shape,
        features=features,
        state_heads=memory.gate.key_heads(shape, mapped),
        exponential=bool(mapping and mapping.exponential),
    )
    _add(graph, name, memory, shape, path)
    if mapping:
        above = f"{name}_features"
        _add(graph, above, mapping, shape, ("feature_map",), module="feature_map", position=memory.position)
        _connect(graph, feeds[0], above, "query", shape.heads, shape.head_dim)
        _connect(graph, feeds[1], above, "pairs", shape.key_heads, shape.head_dim)
        _connect(graph, above, name, "features", mapped, features)
    if memory.gate.rank_of_decay != "none":
        gate = f"{name}_gate"
        _add(graph, gate, memory.gate, shape, (*path, "gate"))
        _connect(graph, "hidden", gate, "hidden", 1, shape.hidden_size)
        width = features if memory.gate.rank_of_decay == "channel" else 1
        _connect(graph, gate, name, "decay", shape.state_heads, width)


def _add(
    graph: HeadGraph, node: str, part: Part, shape: Shape, path: tuple[str | int, ...], module: str = "", **more: object
) -> None:
    graph.add_node(node, part=part, shape=shape, path=path, module=module or node, **more)


def _connect(graph: HeadGraph, start: str, end: str, kind: str, heads: int, dim: int) -> None:
    graph.add_edge(start, end, key=(start, kind), kind=kind, heads=heads, dim=dim)


def parts(graph: HeadGraph, kind: type[Part] = Part) -> list[tuple[str, Part, Shape]]:
    """The nodes that are parts of a kind, in the order of the flow: name, part, shape."""
    nodes = ((node, graph.nodes[node]) for node in networkx.topological_sort(graph))
    return [(node, data["part"], data["shape"]) for node, data in nodes if isinstance(data["part"], kind)]


def memories(graph: HeadGraph) -> list[tuple[str, Memory, Shape]]:
    """The memories, top to bottom."""
    return [(node, part, shape) for node, part, shape in parts(graph, Memory) if isinstance(part, Memory)]


def feed(graph: HeadGraph, node: str, kind: str) -> list[tuple[str, str]]:
    """Where a node's inputs of a kind come from: (node, kind) of each, in the order they were wired."""
    return [(start, kind) for start, _, data in graph.in_edges(node, data=True) if data["kind"] == kind]


def needs_mass(graph: HeadGraph, node: str) -> bool:
    """Whether somebody asks this memory for its mass."""
    reads = [graph.nodes[end]["part"] for _, end, data in graph.out_edges(node, data=True) if data["kind"] == "partial"]
    return any(isinstance(read, Read) and not read.leaves_masses_out for read in reads)


def is_plain(graph: HeadGraph, node: str) -> bool:
    """Whether this memory sees every pair as it comes, and nobody asks for its mass."""
    return feed(graph, node, "pairs") == [("pairs", "pairs")] and not needs_mass(graph, node)
