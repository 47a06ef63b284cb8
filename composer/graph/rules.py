"""Rules that refuse heads without a meaning. A problem has a place in the spec, a reason and a remedy.

Some check a spec before its graph is drawn: names, edges that lead from one memory down to another, numbers, and entries that are
repeated or useless, which the graph does not show. All others check the graph.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from blocks.legend import Shape
from blocks.memories.base import Memory
from blocks.operation import EVICTED, Kind
from blocks.part import Closed, FieldPath, Part, Problem
from composer.errors import GraphError
from composer.graph.composition import ALL, HeadSpec, edges, memory_names
from composer.graph.graph import OUTPUT, READ_NODE, Edge, HeadGraph, Node, ancestors
from composer.graph.wiring import build_graph
from converters.config import LARGEST

# Names of attributes of ``torch.nn.Module`` and of composed heads, under which no module can be registered.
RESERVED = frozenset(
    """
    add_module apply bfloat16 buffers call_super_init children compile cpu cuda double dump_patches empty_state eval extra_repr
    float forward get_buffer get_extra_state get_parameter get_submodule half ipu join load_state_dict mix modules mtia
    named_buffers named_children named_modules named_parameters parameters register_backward_hook register_buffer
    register_forward_hook register_forward_pre_hook register_full_backward_hook register_full_backward_pre_hook
    register_load_state_dict_post_hook register_load_state_dict_pre_hook register_module register_parameter
    register_state_dict_post_hook register_state_dict_pre_hook requires_grad_ set_extra_state set_submodule share_memory split
    smart_apply state_dict to to_empty train training type xpu zero_grad
    """.split()  # noqa: SIM905 - a list literal would fill the screen
)

SMALLEST = 1e-30
"""The least magnitude of a number but 0; the greatest is one over it. Both, and small multiples of them, are numbers of float32."""


def name_problems(head: HeadSpec) -> Iterator[Problem]:
    """The problems of the names of memories."""
    called: set[str] = set()
    for index, name in enumerate(memory_names(head)):
        if name in RESERVED:
            yield f'PyTorch\'s modules have an attribute "{name}"; choose another name for this memory', ("memory", index, "name")
        if name == ALL:
            yield f'"{ALL}" names all pairs of the text; set another `name:` for this memory', ("memory", index)
        if name in called:
            yield (
                f'two memories of this head are called "{name}"; set another `name:` for this one, such as `name: {name}2`',
                ("memory", index),
            )
        called.add(name)


def edge_problems(head: HeadSpec) -> Iterator[Problem]:
    """The problems of ``flow`` and ``graph``."""
    if head.graph is not None and head.flow != "cascade":
        yield "both `graph` and `flow` define which pairs each memory receives; remove one of them", ("flow",)
    if len(head.memory) == 1 and head.flow == "parallel":
        yield "parallel memories need a second one; remove `flow`", ("flow",)
    names, fed = memory_names(head), dict[str, str]()
    for number, (start, end) in enumerate(edges(head)):
        path, order = ("graph", number), [name for name in names if name in (start, end)]
        unknown = [name for name in dict.fromkeys((start, end)) if name not in (ALL, *names)]
        for name in unknown:
            yield f'there is no "{name}" in this head; choose one of {", ".join(names)}, or `{ALL}` for all pairs', path
        if end == ALL:
            yield "`pairs` cannot be the end of an edge: the projections compute them", path
        if end in fed:
            yield f"`{end}` gets its pairs from `{fed[end]}` already; a memory has one source", path
        if start == end:
            yield f"a memory cannot feed itself; use `{ALL} -> {end}`, or an edge from a memory above", path
        if order == [end, start]:
            yield f"memories evict pairs downwards: list `{end}` below `{start}` in `memory`", path
        fed[end] = start


def number_problems(part: Closed, path: FieldPath = ()) -> Iterator[Problem]:
    """Problems with the numbers of a part, and of parts inside it; a seed may be any number."""
    for name, value in part:
        for index, item in enumerate(value if isinstance(value, tuple) else (value,)):
            field_path = (*path, name, index) if isinstance(value, tuple) else (*path, name)
            if isinstance(item, Closed):
                yield from number_problems(item, field_path)
            elif isinstance(item, int) and name != "seed" and item > LARGEST:
                yield f"no size is larger than {LARGEST:,}; lower `{name}`", field_path
            elif isinstance(item, float) and item and not SMALLEST <= abs(item) <= 1 / SMALLEST:
                yield (
                    f"numbers reach from {SMALLEST:g} to {1 / SMALLEST:g}, and this is {item:g}; change `{name}`",
                    field_path,
                )


MISSING: Mapping[str, str] = {
    Kind.FEATURES: "a `{kind}` memory reads features, and the head has no `feature_map`; add one, such as `feature_map: hedgehog`",
    Kind.PAIRS: "this memory receives no pairs; add an edge `pairs -> {name}`, or one from a memory above",
}
"""The remedy if a node has no edge for one of its inputs, by the input's kind."""
Rule = Callable[[HeadGraph], Iterator[Problem]]


def check_graph(head: HeadSpec, shape: Shape, path: FieldPath, *, sizes: bool = True, idle: bool = False) -> HeadGraph:
    """The head's graph. Raises the first of its ``mistakes``, whose arguments these are."""
    if errors := mistakes(head, shape, path, sizes=sizes, idle=idle):
        raise errors[0]
    return build_graph(head, shape)


def mistakes(head: HeadSpec, shape: Shape, path: FieldPath, *, sizes: bool = True, idle: bool = False) -> list[GraphError]:
    """The mistakes against the first broken rule, one per place. Later rules do not run: their findings may be consequences.

    path: of the head. sizes: check them; False where the shape is not that of a model. idle: accept parts without an effect,
    which models have that were built before these were refused.
    """
    try:
        for problems in _problems(head, shape, sizes, idle):
            messages: dict[FieldPath, str] = {}
            for message, field_path in problems:
                messages.setdefault(field_path, message)
            if messages:
                return [GraphError(message, path + place) for place, message in messages.items()]
    except GraphError as error:
        return [GraphError(str(error), path + error.path)]
    return []


def _problems(head: HeadSpec, shape: Shape, sizes: bool, idle: bool) -> Iterator[Iterator[Problem]]:
    """Yield the mistakes of each rule. Rules of the spec are checked first: a head that breaks one has no graph."""
    yield from (name_problems(head), edge_problems(head), number_problems(head))
    graph = build_graph(head, shape)
    yield from (rule(graph) for rule in (*RULES, *(SIZES if sizes else ()), *(() if idle else IDLE)))


def _parts(graph: HeadGraph) -> Iterator[Problem]:
    """Each part means something in this head."""
    for node, part in _main(graph):
        if problem := part.problem(node.shape):
            yield problem[0], (*_path(node), *problem[1])


def _sizes(graph: HeadGraph) -> Iterator[Problem]:
    """Each part accepts its sizes."""
    for node, part in _main(graph):
        if misfit := part.misfit(node.shape):
            yield misfit[0], (*_path(node), *misfit[1])


def _both_ways(graph: HeadGraph) -> Iterator[Problem]:
    """In a bidirectional head, no memory evicts pairs, and no pair has its own route."""
    if not graph.nodes[OUTPUT].shape.both_ways:
        return
    several = ", and set `flow: parallel`" if len(graph.memories) > 1 else ""
    for edge in _pairs(graph.edges):
        if edge.path:
            yield (
                f"a bidirectional head cannot have a graph of pairs, as every token sees all others; remove `graph`{several}",
                ("graph",),
            )
        if edge.output == EVICTED:
            yield "memories of a bidirectional head evict no pairs, as every token sees all others; set `flow: parallel`", ("flow",)


def _ports(graph: HeadGraph) -> Iterator[Problem]:
    """Every edge joins ports of one kind and size. Every required input has an edge, and only inputs that allow it have several."""
    for node in graph.nodes.values():
        ports = {port.name: port for port in node.operation.reads}
        for edge in graph.into(node.name):
            port = ports.get(edge.input)
            if port is None:
                yield f"a `{node.kind}` memory reads every token and {_no_pairs(graph, edge)}", edge.path or _path(node)
                continue
            wrong = [
                f"{actual} {name}, and it reads {wanted}"
                for name, actual, wanted in (
                    ("is the input", edge.kind, port.kind),
                    ("heads", edge.heads, port.heads),
                    ("coordinates", edge.dim, port.dim),
                )
                if wanted is not None and actual not in {None, wanted}
            ]
            if wrong:
                yield f"`{edge.start}` does not fit `{node.name}`: {'; '.join(wrong)}", _path(node)
        for port in ports.values():
            edges = graph.into(node.name, port.name)
            if port.needed and not edges:
                missing = MISSING.get(port.kind, "`{name}` needs the input {port}, and no part returns it")
                yield missing.format(kind=node.kind, name=node.name, port=port.name), _path(node)
            if len(edges) > 1 and not port.many:
                starts = ", ".join(f"`{edge.start}`" for edge in edges)
                yield f"`{node.name}` reads one {port.name}, and {starts} return it", _path(node)


def _no_pairs(graph: HeadGraph, edge: Edge) -> str:
    """Return the remedy for an edge of pairs into a memory that reads none."""
    if edge.path is None:
        return "no evicted pairs; set `flow: parallel`"
    return "no pairs; " + ("leave this edge out" if sum(bool(other.path) for other in graph.edges) > 1 else "remove `graph`")


def _check_reached(graph: HeadGraph) -> Iterator[Problem]:
    """The text, and every part that the spec names, has an effect: a path leads from it to the head's output."""
    ahead = _ahead_of_output(graph)
    if "value" not in ahead:
        yield "no memory of this head sees the text; add one, such as `full`", ("memory",)
    for node in graph.nodes.values():
        read = {edge.output for edge in graph.out_of(node.name) if edge.end in ahead}
        if node.part and node.path and any(port.needed and port.name not in read for port in node.operation.gives):
            yield node.part.unread, node.path


def _ahead_of_output(graph: HeadGraph) -> set[str]:
    """Return the output, and all nodes that it depends on. A memory whose output does not depend on its pairs only passes them
    on."""
    unused = {
        (edge.start, edge.end)
        for node, memory in graph.memories
        if not memory.answers_from_pairs and not _pairs(graph.out_of(node.name))
        for edge in graph.into(node.name, "pairs")
    }
    return ancestors({OUTPUT}, (edge for edge in graph.edges if (edge.start, edge.end) not in unused)) | {OUTPUT}


def _projections(graph: HeadGraph) -> Iterator[Problem]:
    """A part that projects keys itself does so from the same states as the keys of its input."""
    for edge in graph.out_of("hidden"):
        keys = any(port.kind is Kind.KEY and port.needed for port in graph.nodes[edge.end].operation.gives)
        if keys and graph.before_projections():
            yield (
                "keys per query head are projected from the hidden states, and the shared keys here from the mixed ones; set "
                "`inputs: [v]`, or remove `mix_input` (or set it to null)",
                _path(graph.nodes[edge.end]),
            )


def _below(graph: HeadGraph) -> Iterator[Problem]:
    """A memory below another one gets pairs from it."""
    for node, memory in graph.memories:
        below = _pairs(graph.out_of(node.name))
        if below and memory.drops:
            yield (
                "it drops its evicted pairs, so the memory below it is always empty; remove `evict: drop`",
                (*_path(node), "evict"),
            )
        if memory.bounded:
            continue
        last = "put it last, or " if all(other.bounded for _, other in graph.memories if other is not memory) else ""
        for edge in below:
            nothing = f"a `{node.kind}` memory never evicts pairs, so "
            if edge.path:
                yield f"{nothing}`{edge.end}` would always be empty; use the edge `pairs -> {edge.end}`", edge.path
            yield f"{nothing}the memory below it is always empty; {last}set `flow: parallel`", _path(node)


def _into_nothing(graph: HeadGraph) -> Iterator[Problem]:
    """Every memory evicts into another one, unless the spec discards the pairs."""
    for node, memory in graph.memories:
        if not memory.bounded or memory.drops or _pairs(graph.out_of(node.name)) or node.shape.both_ways:
            continue
        capacity = memory.pairs_held(node.shape, 0)
        beyond = f"this memory holds {capacity:.0f} pairs and evicts the rest" if capacity else "this memory evicts every pair"
        add = f"an edge `{node.name} -> NAME` to a memory below it" if _lists_edges(graph) else "a memory below it, such as `state`"
        drop = ", or set `evict: drop`" if memory.answers_from_pairs else ""
        yield f"{beyond}, and no memory receives them; add {add}{drop}", _path(node)


def _neighbours(graph: HeadGraph) -> Iterator[Problem]:
    """A memory fits the memories above and below it."""
    memories = {node.name: memory for node, memory in graph.memories}
    for node, memory in graph.memories:
        below = {edge.end: edge for edge in _pairs(graph.out_of(node.name))}
        above, sources = list[Memory](), graph.into(node.name, "pairs")
        while sources and sources[0].start in memories:
            above.append(memories[sources[0].start])
            sources = graph.into(sources[0].start, "pairs")
        for message, place in memory.problem_between(above, {name: memories[name] for name in below}, edges=_lists_edges(graph)):
            if isinstance(place, str):
                yield message, below[place].path or _path(node)
            else:
                yield message, (*_path(node), *place)


def _weights(graph: HeadGraph) -> Iterator[Problem]:
    """A weight sets a memory against others that have another one, or none."""
    among = [entry for entry in graph.memories if graph.read.leaves_masses_out or entry[1].has_mass()]
    weights = {_weight(graph, node, memory) for node, memory in among}
    beside = {_weight(graph, node, memory) for node, memory in graph.memories if (node, memory) not in among}
    if not graph.read.is_mean or len(weights) != 1 or weights <= {None, *(weight for weight in beside if isinstance(weight, str))}:
        return
    path = (*_path(among[0][0]), "weight")
    if len(among) > 1:
        yield "all memories have this one weight, so it cancels; remove it from one of them", path
    elif beside:
        yield "a weight sets a memory against others with a mass, and this one alone has a mass; remove `weight`", path
    else:
        yield "a weight sets a memory against others, and this one is alone; remove `weight`", path


def _room(graph: HeadGraph) -> Iterator[Problem]:
    """An exact memory that attends to pairs holds one, or hands all of them on."""
    for node, memory in graph.memories:
        holds = not (memory.exact and memory.answers_from_pairs) or memory.pairs_held(node.shape, 1)
        if not holds and not _pairs(graph.out_of(node.name)):
            yield "it holds no pair, and no memory is below it; set `size`, or remove it", (*_path(node), "size")


def _read(graph: HeadGraph) -> Iterator[Problem]:
    """The read can weigh the outputs that it combines."""
    problem = graph.read.problem_over([memory.exact for _, memory in graph.memories])
    if problem:
        yield problem[0], ("read", *problem[1])


def _masses(graph: HeadGraph) -> Iterator[Problem]:
    """Memories that share a denominator have a mass."""
    read = graph.read
    if read.leaves_masses_out and read.is_mean:
        return
    for node, memory in graph.memories:
        if memory.reads is Kind.HIDDEN:
            yield "the shares of latents are probabilities, which only `read: mixture` weighs against others", _path(node)
        elif not (memory.has_mass() or read.takes_raw or read.leaves_masses_out):
            remedy = "" if node.shape.signed else memory.to_have_mass
            yield (
                f"`read: {read.kind}` shares one denominator among all memories, and this `{node.kind}` has no mass; "
                f"{remedy or 'set '}`read: sum` to add its raw numerator, or `read: mixture`",
                _path(node),
            )


RULES: tuple[Rule, ...] = (
    _parts, _both_ways, _ports, _check_reached, _projections, _below, _into_nothing, _neighbours, _read, _masses,
)  # fmt: skip
"""The rules that hold for every head, whatever its sizes."""
SIZES: tuple[Rule, ...] = (_sizes,)
"""The rules that hold on the sizes of a model."""
IDLE: tuple[Rule, ...] = (_weights, _room)
"""The rules that find parameters and parts without an effect; a head that breaks them computes all the same."""


def _weight(graph: HeadGraph, node: Node, memory: Memory) -> float | str | None:
    """Return a memory's weight: the number, or the node that computes it; None if it has none."""
    nodes = [edge.start for edge in graph.into(READ_NODE, "weight") if edge.label == node.name]
    return memory.weight if nodes and isinstance(memory.weight, float) else nodes[0] if nodes else None


def _main(graph: HeadGraph) -> tuple[tuple[Node, Part], ...]:
    """Each part with the node of its main operation."""
    return tuple((node, node.part) for node in graph.nodes.values() if node.part and node.main)


def _pairs(edges: tuple[Edge, ...]) -> tuple[Edge, ...]:
    """Return the edges that lead pairs to a memory."""
    return tuple(edge for edge in edges if edge.kind is Kind.PAIRS and edge.input == "pairs")


def _lists_edges(graph: HeadGraph) -> bool:
    """Whether the spec lists the edges of pairs."""
    return any(edge.path for edge in graph.edges)


def _path(node: Node) -> FieldPath:
    return node.path or ()
