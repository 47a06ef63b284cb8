"""The program of a head: the steps that run, in order.

A step covers one operation, or several that one form computes together. It lists its inputs, its outputs and its tensors of the
state. ``composer.graph.source`` writes the program as a function.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from typing import Any

from blocks.catalogue import PATTERNS
from blocks.flow import Tokens
from blocks.legend import Shape, Tensor
from blocks.operation import Call, Form, Kind, State
from blocks.pattern import Pattern
from blocks.tensors import repeat_heads
from composer.graph.graph import SINKS, Edge, HeadGraph, Node
from composer.graph.source import write_source

Value = tuple[str, str]
"""The output of a node at a port, by the names of both."""
Modules = Mapping[str, Any]
"""The modules with the parts' parameters, by name. Called with a function and its inputs, a module calls the function with its
parameters before them."""


@dataclass(frozen=True, slots=True)
class HeadInputs:
    """The inputs of the heads of a layer, or of one group of them, in one call."""

    hidden: Tensor
    """``B T C``, the input of the layer's attention."""
    query: Tensor
    """``B T H D``, scaled so that logits are query · key / √D."""
    key: Tensor
    """``B T K D``. Neither queries nor keys are rotated."""
    value: Tensor
    """``B T K V``."""
    tokens: Tokens
    """Positions, documents and padding."""
    sinks: Tensor | None = None
    """``H``, the logits of the host's attention sinks; None if it has none."""
    value_is_final: bool = False
    """The memories receive ``value`` unchanged: a convolution or a position of values has no effect."""

    @property
    def length(self) -> int:
        """The number of tokens."""
        return self.query.shape[1]

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """The tensors, as arguments of a head's function: sinks only if there are any."""
        inputs = self.hidden, self.query, self.key, self.value
        return inputs if self.sinks is None else (*inputs, self.sinks)

    def by_port(self) -> dict[Value, Any]:
        """Return the tensors by their nodes and ports in a head's graph."""
        values: dict[Value, Any] = {
            ("hidden", "hidden"): self.hidden,
            ("query", "query"): self.query,
            ("key", "key"): self.key,
            ("value", "value"): self.value,
        }
        if self.sinks is not None:
            values[SINKS, SINKS] = self.sinks
        return values

    def columns(self, columns: slice, tokens: Tokens) -> HeadInputs:
        """Return the inputs of some consecutive tokens. tokens: those of the columns."""
        hidden, query, key, value = (states[:, columns] for states in (self.hidden, self.query, self.key, self.value))
        return replace(self, hidden=hidden, query=query, key=key, value=value, tokens=tokens)

    def detach(self) -> HeadInputs:
        """Return the same inputs, detached from the graph of gradients."""
        return self.map_tensors(lambda tensor: tensor.detach())

    def map_tensors(self, change: Callable[[Tensor], Tensor]) -> HeadInputs:
        """Return the inputs with every tensor but those of ``tokens`` changed by a function."""
        hidden, query, key, value = map(change, (self.hidden, self.query, self.key, self.value))
        sinks = None if self.sinks is None else change(self.sinks)
        return replace(self, hidden=hidden, query=query, key=key, value=value, sinks=sinks)


@dataclass(frozen=True)
class CoveredOperation:
    """One operation within a step."""

    node: Node
    edges: tuple[Edge, ...]
    """All edges into it. Those from another operation of the step are in neither ``single`` nor ``many``: the step's form passes on
    what flows there by itself."""
    single: Mapping[str, Value]
    """The sources of its inputs, by port."""
    many: Mapping[str, Mapping[str | None, Value]]
    """The sources of its inputs at ports with several edges, by port and label."""
    gives: tuple[Value, ...]
    """Its outputs."""
    slots: Mapping[str, str]
    """The names of its tensors in the head's state, by its own names."""
    shape: Shape
    """Its sizes."""
    needs_mass: bool
    """Whether a read needs its lse."""
    runs: tuple[Callable[..., Any], ...] = ()
    """The functions of its own forms, with their options, if other forms call them."""
    maps: Mapping[str, CoveredOperation] = field(default_factory=dict)
    """By name, the operations that its form calls itself."""


@dataclass(frozen=True)
class Step:
    """One form, and the operations that it computes."""

    covers: tuple[CoveredOperation, ...]
    names: tuple[str, ...]
    """The form's names of the operations."""
    form: Form
    why: str
    """Why it is this form."""
    missing: tuple[str, ...] = ()
    """Packages of earlier forms that are not installed."""
    instead: tuple[Step, ...] = ()
    """The steps that run if the form refuses its inputs."""


@dataclass(frozen=True)
class Program:
    """The steps of a head."""

    before: tuple[Step, ...]
    """The steps that queries and keys are projected from."""
    after: tuple[Step, ...]
    """The other steps."""
    mixed: Value
    """The value that queries and keys are projected from."""
    output: Value
    title: str
    """The title of the functions in tracebacks."""

    @property
    def steps(self) -> tuple[Step, ...]:
        return (*self.before, *self.after)


Watch = Callable[[CoveredOperation, Call, tuple[Any, ...]], tuple[Any, ...]]
"""A callback. Its arguments are an operation that has run, the head's call, and the operation's outputs. It returns the outputs
that the following steps read."""


def _keep_value(value: Tensor, covered: CoveredOperation, call: Call, outputs: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the outputs, with the given values in place of computed ones. A ``Watch`` once ``value`` is set."""
    ports = covered.node.operation.gives
    return tuple(
        repeat_heads(value, output.shape[2]) if port.kind is Kind.VALUE else output
        for port, output in zip(ports, outputs, strict=True)
    )


class HeadFunctions:
    """The compiled functions of a program. They are compiled at once: torch.compile traces their calls, and no cached property.

    - head: the function of the steps after the projections. Its arguments are the modules, the head's call, and
      ``HeadInputs.tensors``. It returns the head's output and the rest of its new state.
    - watched_head: the same function with a further argument, a ``Watch`` that is called after each step.
    - mix: the function of the steps before the projections. Its arguments are the modules, the head's call, and the hidden states.
      It returns the hidden states that queries and keys are projected from, and the new state of these steps.
    """

    def __init__(self, program: Program) -> None:
        title = program.title
        self.head = write_source(program).compile(title)
        self.watched_head = write_source(program, watched=True).compile(f"{title}, step by step")
        self.mix = write_source(program, mixing=True).compile(f"{title}, before projections")

    def run(self, modules: Modules, inputs: HeadInputs, call: Call) -> tuple[Tensor, State]:
        """Return the head's output and the rest of its new state."""
        if not inputs.value_is_final:
            return self.head(modules, call, *inputs.tensors)
        return self.watched_head(modules, call, *inputs.tensors, partial(_keep_value, inputs.value))


def cover(node: Node, edges: tuple[Edge, ...], step: frozenset[str] = frozenset(), **further: Any) -> CoveredOperation:
    """Return an operation with these edges into it.

    step: the names of the operations in the same step. further: the last fields of ``CoveredOperation``.
    """
    single: dict[str, Value] = {}
    many: dict[str, dict[str | None, Value]] = {port.name: {} for port in node.operation.reads if port.many}
    for edge in (edge for edge in edges if edge.start not in step):
        if edge.input in many:
            many[edge.input][edge.label] = edge.start, edge.output
        else:
            single[edge.input] = edge.start, edge.output
    gives = tuple((node.name, port.name) for port in node.operation.gives)
    slots = {name: f"{node.name}.{name}" for name in node.operation.slots}
    return CoveredOperation(node, edges, single, many, gives, slots, node.shape, **further)


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
        if not pattern.is_closed or _is_closed(graph, [by_name[node] for node in pattern.nodes]):
            yield {node: by_name[node] for node in pattern.nodes}


def _is_closed(graph: HeadGraph, names: list[str]) -> bool:
    """Whether the outputs of these nodes, except the last node's, are read only by each other, and no other partial enters them."""
    outputs_inside = all(edge.end in names for name in names[:-1] for edge in graph.out_of(name))
    return outputs_inside and all(edge.start in names for name in names for edge in graph.into(name) if edge.kind is Kind.PARTIAL)


def _is_node(attributes: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    node: Node = attributes["of"]
    return node.part is not None and wanted["is"](node.part)


def _has_edges(edges: Mapping[int, Mapping[str, Any]], wanted: Mapping[int, Mapping[str, Any]]) -> bool:
    kinds = [edge["of"].kind for edge in edges.values()]
    return all(edge["kind"] in kinds for edge in wanted.values())
