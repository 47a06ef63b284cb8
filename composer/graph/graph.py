"""The graph of one head: nodes are parts, edges carry what flows between them, with its kind and dimensions.

Kinds of edges: hidden, query, key, value, pairs (those that enter, or that a memory evicts), numbers (what travels with the
pairs), features, decay, weight, partial, output; and two that point upwards, from what an earlier moment left: recall (a sparse
cache asks the state that it feeds) and error (a window compares its weights with the features below).

The short form of a spec becomes this graph; ``rules`` refuses what cannot mean anything, ``composer.model.head`` compiles the
rest into plain calls, once.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import networkx

from blocks.legend import Shape
from blocks.memories.base import Memory
from blocks.memories.delta import Delta
from blocks.memories.recurrent import Recurrent
from blocks.memories.sparse import Sparse
from blocks.part import Part, Slot
from blocks.reads import Read
from composer.graph.wires import fed_by, memory_names, sources_of_pairs

if TYPE_CHECKING:
    from composer.spec.document import HeadSpec

HeadGraph = networkx.MultiDiGraph
SOURCES = ("hidden", "query", "key", "value")
UPWARDS = frozenset({"recall", "error"})
Path = tuple[str | int, ...]


def build_graph(head: HeadSpec, shape: Shape) -> HeadGraph:
    """The graph of ``head`` on a group of heads of this shape. Every part's node has its own ``shape`` and its ``path``."""
    return _Builder(head, shape).graph


class _Builder:
    """Wires one head, from its inputs down to its output."""

    def __init__(self, head: HeadSpec, shape: Shape) -> None:
        self.graph, self.head, self.shape = HeadGraph(), head, shape
        self.names, self.feeds = memory_names(head), sources_of_pairs(head)
        self.memory = dict(zip(self.names, head.memory, strict=True))
        self.convolved = head.conv.key_heads(shape) if head.conv and "k" in head.conv.inputs else 0
        self.inputs, self.query, self.value = "hidden", "query", "value"
        self._sources()
        self._pairs()
        for name in self.names:
            self._memory(name)
        self._output()

    def _sources(self) -> None:
        head, shape = self.head, self.shape
        self.graph.add_nodes_from(SOURCES, part=None)
        if head.mix_input:
            self._add("mix_input", head.mix_input, ("mix_input",))
            self._connect("hidden", "mix_input", "hidden", 1, shape.hidden_size)
            if head.mix_input.feeds == "inputs":
                self.inputs = "mix_input"
            else:
                self._connect("mix_input", "query", "hidden", 1, shape.hidden_size)
                self._connect("mix_input", "key", "hidden", 1, shape.hidden_size)
        if head.conv:
            self._add("conv", head.conv, ("conv",))
            self._connect("query", "conv", "query", shape.heads, shape.head_dim)
            self._connect("key", "conv", "key", shape.key_heads, shape.head_dim)
            self.query = "conv"
        if head.value_position:
            self._add("value_position", head.value_position, ("value_position",))
            self._connect("value", "value_position", "value", shape.key_heads, shape.head_dim)
            self.value = "value_position"

    def _pairs(self) -> None:
        shape = self.shape
        self.graph.add_node("pairs", part=None)
        self._connect("key", "pairs", "key", shape.key_heads, shape.head_dim)
        if self.convolved:
            self._connect("conv", "pairs", "key", self.convolved, shape.head_dim)
        self._connect(self.value, "pairs", "value", shape.key_heads, shape.head_dim)
        for name, memory in self.memory.items():
            if isinstance(memory, Delta):
                self._add(f"{name}_rate", memory.rate, (*self._path(name), "rate"))
                self._connect("hidden", f"{name}_rate", "hidden", 1, shape.hidden_size)
                self._connect(f"{name}_rate", "pairs", "numbers", memory.rate.heads(shape), 1)

    def _memory(self, name: str) -> None:
        memory, shape = self.memory[name], self.shape
        if isinstance(memory, Recurrent):
            self._state(name, memory)
        elif memory.reads == "inputs":
            self._add(name, memory, self._path(name))
            self._connect(self.inputs, name, "hidden", 1, shape.hidden_size)
            self._connect(self.value, name, "value", shape.key_heads, shape.head_dim)
        else:
            below = self._all_below(name)
            features = any(isinstance(self.memory[one], Recurrent) for one in below)
            own = replace(shape, convolved_heads=self.convolved if features else 0, numbers=self._numbers(name, below))
            if isinstance(memory, Sparse) and features:
                state = self._state_shape(below[0])
                own = replace(own, features=state.features)
            self._add(name, memory, self._path(name), own)
            self._connect("query", name, "query", shape.heads, shape.head_dim)
            self._connect(self.feeds[name], name, "pairs", shape.key_heads, shape.head_dim)
        if memory.weight == "token" and memory.reads != "inputs":
            self._connect(self.inputs, name, "hidden", 1, shape.hidden_size)
        if memory.weight == "same":
            self._connect(self.feeds[name], name, "weight", shape.heads, 1)

    def _state(self, name: str, memory: Recurrent) -> None:
        """A state memory with what stands above it: its features and, where it has one, its gate."""
        mapping, above, shape = self.head.feature_map, self.feeds[name], self._state_shape(name)
        self._add(name, memory, self._path(name), shape)
        if mapping:
            features = f"{name}_features"
            self._add(features, mapping, ("feature_map",), shape, module="feature_map", position=memory.position)
            self._connect(self.query, features, "query", shape.heads, shape.head_dim)
            self._connect(above, features, "pairs", self._holds(above), shape.head_dim)
            self._connect(features, name, "features", mapping.key_heads(shape, self._incoming(name)), shape.features)
            sparse = self.memory.get(above)
            if isinstance(sparse, Sparse):
                self._connect(name, above, "recall", shape.heads, shape.head_dim)
                window = self.feeds[above]
                if _reads_window(sparse) and window in self.memory:
                    self._connect(features, window, "error", shape.heads, shape.features)
        if memory.gate.rank_of_decay != "none":
            self._add(f"{name}_gate", memory.gate, (*self._path(name), "gate"), shape)
            self._connect("hidden", f"{name}_gate", "hidden", 1, shape.hidden_size)
            width = shape.features if memory.gate.rank_of_decay == "channel" else 1
            self._connect(f"{name}_gate", name, "decay", shape.state_heads, width)

    def _state_shape(self, name: str) -> Shape:
        memory, mapping, incoming = self.memory[name], self.head.feature_map, self._incoming(name)
        assert isinstance(memory, Recurrent)
        shape = replace(self.shape, convolved_heads=incoming if incoming != self.shape.key_heads else self.convolved)
        mapped = mapping.key_heads(shape, incoming) if mapping else incoming
        if isinstance(memory, Delta):
            mapped = max(mapped, memory.rate.heads(shape))
        return replace(
            shape,
            features=mapping.features(shape) if mapping else 0,
            state_heads=memory.gate.key_heads(shape, mapped),
            exponential=bool(mapping and mapping.exponential and memory.features_as == "features"),
        )

    def _incoming(self, name: str) -> int:
        """Heads of the keys that a state's feature map is given."""
        above = self.feeds[name]
        return self.shape.heads if isinstance(self.memory.get(above), Sparse) else self.convolved or self.shape.key_heads

    def _holds(self, name: str) -> int:
        """Heads of the pairs that come from a memory, or from the call."""
        return self.shape.heads if isinstance(self.memory.get(name), Sparse) else self.shape.key_heads

    def _all_below(self, name: str) -> list[str]:
        """The memories that a pair may still fall into, nearest first."""
        found: list[str] = []
        for one in fed_by(self.head, name):
            found += [one, *self._all_below(one)]
        return found

    def _numbers(self, name: str, below: list[str]) -> tuple[tuple[str, int], ...]:
        """What travels with the pairs that a memory holds: rates for the delta rules below, and errors for sparse caches."""
        rates = {one: memory.rate for one, memory in self.memory.items() if isinstance(memory, Delta) and one in below}
        sparse = [one for one in (name, *fed_by(self.head, name)) if _reads_window(self.memory[one])]
        numbers = [(f"{one}_rate", rate.heads(self.shape)) for one, rate in rates.items()]
        return tuple(numbers + [(f"{one}_error", self.shape.heads) for one in sparse])

    def _output(self) -> None:
        head, shape = self.head, self.shape
        self.graph.add_node("output", part=None)
        answer, kind = self.names[0], "partial"
        if head.read is not None:
            self._add("read", head.read, ("read",))
            for name in self.names:
                self._connect(name, "read", "partial", shape.heads, shape.head_dim)
            answer, kind = "read", "output"
        if head.value_position is not None:
            path, module = ("value_position",), "value_position"
            self._add("value_position_back", head.value_position, path, module=module)
            self._connect(answer, "value_position_back", kind, shape.heads, shape.head_dim)
            answer, kind = "value_position_back", "output"
        if head.output is not None:
            self._add("output_norm", head.output, ("output",))
            self._connect(answer, "output_norm", kind, shape.heads, shape.head_dim)
            self._connect("hidden", "output_norm", "hidden", 1, shape.hidden_size)
            answer, kind = "output_norm", "output"
        self._connect(answer, "output", kind, shape.heads, shape.head_dim)

    def _path(self, name: str) -> Path:
        return ("memory", self.names.index(name))

    def _add(self, node: str, part: Part, path: Path, shape: Shape | None = None, module: str = "", **more: object) -> None:
        self.graph.add_node(node, part=part, shape=shape or self.shape, path=path, module=module or node, **more)

    def _connect(self, start: str, end: str, kind: str, heads: int, dim: int) -> None:
        self.graph.add_edge(start, end, key=(start, kind), kind=kind, heads=heads, dim=dim)


def parts(graph: HeadGraph, kind: type[Part] = Part) -> list[tuple[str, Part, Shape]]:
    """The nodes that are parts of a kind, in the order of the flow: name, part, shape."""
    nodes = ((node, graph.nodes[node]) for node in _order(graph))
    return [(node, data["part"], data["shape"]) for node, data in nodes if isinstance(data["part"], kind)]


def _order(graph: HeadGraph) -> list[str]:
    """Top to bottom; a sparse cache comes after all that the state below it needs, since it hands the pairs on itself."""
    flow = networkx.DiGraph((start, end) for start, end, kind in graph.edges(data="kind") if kind not in UPWARDS)
    flow.add_nodes_from(graph)
    for sparse, (features, state) in asked(graph).items():
        flow.add_edges_from((start, sparse) for start in (*graph.predecessors(features), *graph.predecessors(state)))
        flow.remove_edges_from([(sparse, sparse), (features, sparse)])
    return list(networkx.lexicographical_topological_sort(flow, key=list(graph).index))


def asked(graph: HeadGraph) -> dict[str, tuple[str, str]]:
    """The sparse caches with a state below them: the features and the state that each hands its pairs to."""
    return {end: (feed(graph, start, "features")[0][0], start) for start, end, kind in graph.edges(data="kind") if kind == "recall"}


def slots(graph: HeadGraph) -> dict[str, Slot]:
    """Every tensor that a head hands from call to call: ``<part>.<tensor>``. Both ways, memories hand nothing on."""
    return {
        f"{node}.{name}": slot
        for node, part, own in parts(graph)
        if not (own.both_ways and isinstance(part, Memory))
        for name, slot in part.state(own).items()
    }


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


def _reads_window(memory: Memory) -> bool:
    """Whether it scores pairs by their errors in the window above."""
    return isinstance(memory, Sparse) and memory.keep.reads == "window"
