"""The graph of one head: nodes are operations of its parts, edges carry what flows between their ports.

The short form of a spec becomes this graph, once for each head and shape; ``composer.graph.rules`` refuses what cannot mean
anything, and ``composer.graph.lowering`` compiles the rest into a program.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from graphlib import CycleError, TopologicalSorter
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar, cast

from blocks.legend import Shape
from blocks.memories.base import Memory
from blocks.operation import Kind, Operation, Port, Slot
from blocks.part import FieldPath, Part
from blocks.positions import Position
from blocks.reads import Read, TakesPartials
from composer.errors import GraphError
from composer.graph.composition import ALL, HeadSpec

if TYPE_CHECKING:
    import networkx

INPUTS = ("hidden", "query", "key", "value")
SINKS = "host_sinks"
"""The name of the further input of heads in a model with attention sinks."""
OUTPUT = "output"
READ_NODE = "read"
"""The name of the node that weighs the memories' outputs."""
Made = TypeVar("Made")
NodeName = TypeVar("NodeName", bound=Hashable)


@dataclass(frozen=True)
class Node:
    """One operation in a head."""

    name: str
    operation: Operation
    shape: Shape
    part: Part | None = None
    """None for the head's own inputs and output."""
    module: str = ""
    """The name of the module with its parameters; several operations of one part share it."""
    path: FieldPath | None = None
    """Its place in the head's spec; None for a node that no spec names."""
    main: bool = True
    """Whether it is the part's main operation."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Further arguments of its forms, which follow from its place in the head."""
    maps: Mapping[str, str] = field(default_factory=dict)
    """By name, the operations of feature maps that its forms call themselves, on pairs of their own."""
    rotation: Position | None = None
    """How the queries that enter it are rotated; None: they are not."""

    @property
    def kind(self) -> str:
        """The part's kind."""
        assert self.part is not None, "the head's own inputs and output are of no kind"
        return self.part.kind


@dataclass(frozen=True)
class Edge:
    """From an output port to an input port. heads, dim: the sizes of what flows. label: its name among several edges into one port.

    path: its place in the head's spec; None where no spec names it.
    """

    start: str
    output: str
    end: str
    input: str
    kind: Kind
    heads: int | None
    dim: int | None
    label: str | None = None
    path: FieldPath | None = field(default=None, compare=False)


@dataclass(frozen=True, eq=False)
class HeadGraph:
    """Nodes by their names, edges in the order in which they were added. A graph is equal to itself alone."""

    nodes: Mapping[str, Node]
    edges: tuple[Edge, ...]

    @cached_property
    def network(self) -> networkx.MultiDiGraph:
        """The graph as a networkx graph. The attribute ``of`` of each node and edge is its object here."""
        import networkx  # slow to import, and not needed to check a head

        network = networkx.MultiDiGraph()
        network.add_nodes_from((name, {"of": node}) for name, node in self.nodes.items())
        network.add_edges_from((edge.start, edge.end, {"of": edge}) for edge in self.edges)
        return networkx.freeze(network)

    @cached_property
    def order(self) -> tuple[Node, ...]:
        """Return all nodes in topological order; among candidates for the next place, the one that was added first."""
        names = sort_by_flow(self.nodes, ((edge.start, edge.end) for edge in self.edges))
        assert names is not None, "each part is added after its inputs"
        return tuple(self.nodes[name] for name in names)

    @property
    def parts(self) -> tuple[Node, ...]:
        """The nodes that are parts, in the order of the flow."""
        return tuple(node for node in self.order if node.part is not None)

    @property
    def memories(self) -> tuple[tuple[Node, Memory], ...]:
        """The memories' outputs, as the spec lists them."""
        return tuple((node, node.part) for node in self.nodes.values() if isinstance(node.part, Memory) and node.main)

    @property
    def read(self) -> Read:
        """What weighs the memories' outputs."""
        (read,) = (node.part for node in self.nodes.values() if isinstance(node.part, Read))
        return read

    @property
    def softmax(self) -> Memory | None:
        """The memory of a head that is softmax attention over all tokens and nothing else; None for every other head."""
        (_, memory), *others = self.memories
        roles = {node.part.role for node in self.order if node.part is not None and node.part is not memory}
        nothing_else = not others and roles <= {"entry", "read"}
        return memory if nothing_else and memory.is_softmax_over_all else None

    def into(self, name: str, port: str | None = None) -> tuple[Edge, ...]:
        """Return the edges into a node, or into one of its ports."""
        return tuple(edge for edge in self.edges if edge.end == name and port in (None, edge.input))

    def out_of(self, name: str) -> tuple[Edge, ...]:
        """Return the edges out of a node."""
        return tuple(edge for edge in self.edges if edge.start == name)

    def before_projections(self) -> frozenset[str]:
        """Return the parts that queries and keys are projected from."""
        return frozenset(ancestors({"query", "key"}, self.edges) - set(INPUTS))

    @property
    def slots(self) -> dict[str, Slot]:
        """Every tensor that the head hands from call to call: ``<node>.<tensor>``."""
        return {f"{node.name}.{name}": slot for node in self.parts for name, slot in node.operation.slots.items()}


def sort_by_flow(names: Iterable[NodeName], links: Iterable[tuple[NodeName, NodeName]]) -> list[NodeName] | None:
    """Return the names so that each link leads forward; among candidates for the next place, the first of ``names``. None if links
    form a circle."""
    place = {name: index for index, name in enumerate(names)}
    sorter = TopologicalSorter[NodeName](dict.fromkeys(place, ()))
    for start, end in links:
        sorter.add(end, start)
    try:
        sorter.prepare()
    except CycleError:
        return None
    ready, order = set[NodeName](), list[NodeName]()
    while sorter.is_active():
        ready.update(sorter.get_ready())
        first = min(ready, key=place.__getitem__)
        ready.remove(first)
        order.append(first)
        sorter.done(first)
    return order


def ancestors(names: Iterable[str], edges: Iterable[Edge]) -> set[str]:
    """Return the nodes from which edges lead to the named ones, which are included only if edges lead to them, too."""
    before: dict[str, set[str]] = {}
    for edge in edges:
        before.setdefault(edge.end, set()).add(edge.start)
    passed, ahead = set[str](), list(names)
    while ahead:
        new = before.get(ahead.pop(), set()) - passed
        passed |= new
        ahead += new
    return passed


def cached_by_head(function: Callable[[HeadSpec, Shape], Made]) -> Callable[[HeadSpec, Shape], Made]:
    """Return the function with a cache over heads and shapes. Frozen schemas are their own keys."""
    return cast("Callable[[HeadSpec, Shape], Made]", lru_cache(maxsize=512)(function))


class Draft:
    """A graph while it is being drawn."""

    def __init__(self) -> None:
        self._nodes: dict[str, Node] = {}
        self._edges: list[Edge] = []

    def add(
        self,
        name: str,
        part: Part,
        shape: Shape,
        path: FieldPath | None,
        *,
        module: str = "",
        operation: Operation | None = None,
        options: Mapping[str, Any] | None = None,
        maps: Mapping[str, str] | None = None,
        rotation: Position | None = None,
    ) -> None:
        """A part's operation, or another one of its operations. Raises GraphError if another node has its name."""
        chosen, is_main = operation or part.operation(shape), operation is None
        further, called = (MappingProxyType(dict(mapping or {})) for mapping in (options, maps))
        self._put(Node(name, chosen, shape, part, module or name, path, is_main, further, called, rotation))

    def source(self, name: str, port: Port, shape: Shape, *, reads: tuple[Port, ...] = ()) -> None:
        """An input of the head."""
        self._put(Node(name, Operation(reads, (port,), ()), shape))

    def sink(self, name: str, port: Port, shape: Shape) -> None:
        """The output of the head."""
        self._put(Node(name, Operation((port,), (), ()), shape))

    def connect(
        self, start: str, end: str, to: str, *, output: str | None = None, label: str | None = None, path: FieldPath | None = None
    ) -> None:
        """Join an output of ``start``, its only one or the named one, to the port ``to`` of ``end``. Edges of pairs are also made
        from nodes without such an output, and into nodes without such an input: the rules report them.
        """
        gives = self._nodes[start].operation.gives
        port = gives[0] if output is None else next((port for port in gives if port.name == output), Port(output, Kind.PAIRS))
        self._edges.append(Edge(start, port.name, end, to, port.kind, port.heads, port.dim, label, path))

    def _put(self, node: Node) -> None:
        other = self._nodes.setdefault(node.name, node)
        if other is not node:
            paths = (candidate.path for candidate in (node, other) if candidate.path and candidate.path[0] == "memory")
            message = f'two elements of this head have the name "{node.name}"; set another `name:` for this memory'
            raise GraphError(message, next(paths, ())[:2])

    def finish(self) -> HeadGraph:
        """Return the finished graph."""
        return HeadGraph(MappingProxyType(self._nodes), tuple(self._edges))


def takers_of(graph: HeadGraph, name: str) -> list[TakesPartials]:
    """Return the parts that read this memory's output: the read, and any part before it."""
    ends = [edge.end for edge in graph.out_of(name) if edge.kind is Kind.PARTIAL]
    parts = [part for end in ends for part in (graph.nodes[end].part, *takers_of(graph, end))]
    return [part for part in parts if isinstance(part, TakesPartials)]


def evicts_together(graph: HeadGraph, name: str) -> bool:
    """Return whether this node may evict several pairs at a token."""
    part = graph.nodes[name].part
    return isinstance(part, Memory) and part.evicts_together


def pairs_of(graph: HeadGraph, name: str) -> dict[str, bool]:
    """Return the fields of ``Setting`` that describe which pairs this memory receives."""
    starts, origins = [edge.start for edge in graph.into(name, "pairs")], list[str]()
    while starts:
        origins += starts
        starts = [edge.start for start in starts for edge in graph.into(start, "pairs")]
    parts = [graph.nodes[start].part for start in origins]
    sifted = any(isinstance(part, Memory) and part.sifts for part in parts)
    return {"every_pair": origins[:1] == [ALL], "sifted": sifted}
