"""Rules that refuse heads without a meaning. Each checks the graph; a problem has a place in the spec, a reason and a remedy."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain

import networkx

from blocks.legend import Shape
from blocks.operation import FALLEN, Kind
from blocks.part import Problem
from blocks.reads import Read
from composer.errors import GraphError, Path
from composer.graph.composition import HeadSpec
from composer.graph.graph import OUTPUT, Edge, HeadGraph, Node, build_graph
from composer.graph.rules_of_spec import lines, names, sizes

MISSING: Mapping[str, str] = {
    Kind.FEATURES: "a `{kind}` memory sees features, and the head has no `feature_map`; add one, such as `feature_map: hedgehog`",
    Kind.PAIRS: "no edge brings pairs to this memory; add `pairs -> {name}`, or one from a memory above",
}
"""The remedy where nothing gives a node one of its inputs, by the input's kind."""


def checked_graph(head: HeadSpec, shape: Shape, path: Path) -> HeadGraph:
    """The head's graph, or a GraphError at ``path`` for the first rule that it breaks."""
    for message, where in chain(names(head, shape), lines(head), sizes(head)):
        raise GraphError(message, path + where)
    graph = build_graph(head, shape)
    for message, where in problems_of(graph):
        raise GraphError(message, path + where)
    return graph


def problems_of(graph: HeadGraph) -> Iterator[Problem]:
    """All problems of a graph, each with its place in the head."""
    for rule in (_parts, _both_ways, _ports, _reached, _projections, _falling, _read):
        yield from rule(graph)


def _parts(graph: HeadGraph) -> Iterator[Problem]:
    """Each part accepts its sizes."""
    for node in graph.nodes.values():
        problem = node.part.problem(node.shape) if node.part and node.main else None
        if problem:
            yield problem[0], (*_path(node), *problem[1])


def _both_ways(graph: HeadGraph) -> Iterator[Problem]:
    for edge in _pairs(graph.edges) if graph.nodes[OUTPUT].shape.both_ways else ():
        if edge.path:
            yield "no pair goes its own way where every token sees all others; remove `graph`, and set `flow: parallel`", ("graph",)
        if edge.output == FALLEN:
            yield "nothing falls where every token sees all others; set `flow: parallel`", ("flow",)


def _ports(graph: HeadGraph) -> Iterator[Problem]:
    """Every edge joins ports of one kind and size; every required input has an edge, and several only where it takes many."""
    for node in graph.nodes.values():
        ports = {port.name: port for port in node.operation.reads}
        for edge in graph.into(node.name):
            port = ports.get(edge.input)
            if port is None:
                said = "no pairs; leave this edge out" if edge.path else "no pairs that fall; set `flow: parallel`"
                yield f"a `{node.kind}` memory sees every token and {said}", edge.path or _path(node)
                continue
            wrong = [
                f"{found} {what}, and it reads {wanted}"
                for what, found, wanted in (
                    ("is what comes", edge.kind, port.kind),
                    ("heads", edge.heads, port.heads),
                    ("coordinates", edge.dim, port.dim),
                )
                if wanted is not None and found not in {None, wanted}
            ]
            if wrong:
                yield f"`{edge.start}` does not fit `{node.name}`: {'; '.join(wrong)}", _path(node)
        for port in ports.values():
            edges = graph.into(node.name, port.name)
            if port.needed and not edges:
                missing = MISSING.get(port.kind, "nothing gives `{name}` its {port}")
                yield missing.format(kind=node.kind, name=node.name, port=port.name), _path(node)
            if len(edges) > 1 and not port.many:
                given = ", ".join(f"`{edge.start}`" for edge in edges)
                yield f"`{node.name}` reads one {port.name}, and {given} give it", _path(node)


def _reached(graph: HeadGraph) -> Iterator[Problem]:
    """Every part that the spec names has an effect: a path leads from it to the head's output."""
    ahead = networkx.ancestors(graph.network, OUTPUT) | {OUTPUT}
    for node in graph.nodes.values():
        read = {edge.output for edge in graph.out_of(node.name) if edge.end in ahead}
        if node.part and node.path and any(port.needed and port.name not in read for port in node.operation.gives):
            yield node.part.unread, node.path


def _projections(graph: HeadGraph) -> Iterator[Problem]:
    """A part that projects keys itself does so from the same states as the keys of its input."""
    for edge in graph.out_of("hidden"):
        keys = any(port.kind is Kind.KEY and port.needed for port in graph.nodes[edge.end].operation.gives)
        if keys and graph.before_projections():
            yield (
                "keys of each query head's own are projected from the hidden states, and the shared ones here from what is mixed; "
                "say `inputs: [v]`, or remove `mix_input` (or set it to null)",
                _path(graph.nodes[edge.end]),
            )


def _falling(graph: HeadGraph) -> Iterator[Problem]:
    """Pairs that fall out of a memory have somewhere to go, the memory below has a source, and the two fit each other."""
    memories = {node.name: memory for node, memory in graph.memories}
    fed = {edge.end: edge for edge in _pairs(graph.edges)}
    beside = [memory for name, memory in memories.items() if name not in fed or fed[name].output != FALLEN]
    kept = len(beside) > 1 and not all(memory.bounded for memory in beside)
    for node, memory in graph.memories:
        below, drawn = _pairs(graph.out_of(node.name)), node.name in fed and fed[node.name].path is not None
        for edge in below if not memory.bounded else ():
            nothing = f"nothing ever falls out of a `{node.kind}` memory, so "
            if edge.path:
                yield f"{nothing}`{edge.end}` would stay empty; say `pairs -> {edge.end}`", edge.path
            yield f"{nothing}the one below it stays empty; put it last, or set `flow: parallel`", _path(node)
        if below and memory.drops:
            yield "it drops its evicted pairs, so the memory below it stays empty; remove `evict: drop`", (*_path(node), "evict")
        if memory.bounded and not memory.drops and not below and not (kept and memory in beside):
            yield (
                f"pairs beyond the {memory.pairs_held(node.shape, 0):.0f} that it holds fall out of this memory and into nothing; "
                + (f"add an edge `{node.name} -> NAME` to a memory below it" if drawn else "add a memory below it, such as `state`")
                + ", or say `evict: drop`",
                _path(node),
            )
        above = memories.get(fed[node.name].start) if node.name in fed else None
        for message, where in memory.problem_between(above, {edge.end: memories[edge.end] for edge in below}, edges=drawn):
            named = [edge.path for edge in below if edge.path and where == ("graph", edge.end)]
            yield message, named[0] if named else (*_path(node), *where)


def _read(graph: HeadGraph) -> Iterator[Problem]:
    """The answers that the read takes can be weighed against each other."""
    names = [edge.label for edge in graph.into("read", "partial")]
    read, memories = graph.nodes["read"].part, [(node, memory) for node, memory in graph.memories if node.name in names]
    assert isinstance(read, Read)
    if len(memories) == 1 and graph.into("read", "weight"):
        yield "a weight sets a memory against others, and this one is alone; remove `weight`", (*_path(memories[0][0]), "weight")
    problem = read.problem_over([memory.exact for _, memory in memories])
    if problem:
        yield problem[0], ("read", *problem[1])
    for node, memory in () if read.leaves_masses_out else memories:
        if memory.reads is Kind.HIDDEN:
            yield "the shares of latents are probabilities, which only `read: mixture` weighs against others", _path(node)
        elif not memory.has_mass() and not read.takes_raw:
            remedy = memory.to_have_mass or "set "
            yield (
                f"`read: {graph.nodes['read'].kind}` gives all memories one denominator, and this `{node.kind}` has no mass; "
                f"{remedy}`read: sum` to add its raw numerator, or `read: mixture`",
                _path(node),
            )


def _pairs(edges: tuple[Edge, ...]) -> tuple[Edge, ...]:
    """The edges that bring pairs to a memory."""
    return tuple(edge for edge in edges if edge.kind is Kind.PAIRS)


def _path(node: Node) -> Path:
    return node.path or ()
