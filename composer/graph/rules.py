"""What a head may not be. Each rule looks at the spec or its graph, and says where, why, and what to do instead."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from blocks.legend import Shape
from blocks.memories.recurrent import Recurrent
from blocks.memories.sparse import Sparse
from blocks.memories.state import StateMemory
from blocks.memories.window import Window
from blocks.positions import Rope
from blocks.reads import Shared
from composer.errors import GraphError
from composer.graph.graph import HeadGraph, build_graph
from composer.graph.wires import ALL, edges, fed_by, memory_names, sources_of_pairs

if TYPE_CHECKING:
    from composer.spec.document import HeadSpec

# What ``torch.nn.ModuleDict`` calls its own methods and settings: no parameter can stand under such a name.
RESERVED = frozenset(
    """
    add_module apply bfloat16 buffers call_super_init children clear compile cpu cuda double dump_patches empty_state eval
    extra_repr float forward get_buffer get_extra_state get_parameter get_submodule half ipu items keys load_state_dict mix modules
    mtia named_buffers named_children named_modules named_parameters parameters pop register_backward_hook register_buffer
    register_forward_hook register_forward_pre_hook register_full_backward_hook register_full_backward_pre_hook
    register_load_state_dict_post_hook register_load_state_dict_pre_hook register_module register_parameter
    register_state_dict_post_hook register_state_dict_pre_hook requires_grad_ set_extra_state set_submodule share_memory split
    smart_apply state_dict to to_empty train training type update values xpu zero_grad
    """.split()  # noqa: SIM905 - a list literal would fill the screen
)
Problem = tuple[str, tuple[str | int, ...]]


def checked_graph(head: HeadSpec, shape: Shape, path: tuple[str | int, ...]) -> HeadGraph:
    """The head's graph, or a GraphError at ``path`` for the first rule that it breaks."""
    for rule in (_names, _both_ways, _edges, _parts_are_used, _falling, _sparse, _sizes, _feature_map, _positions):
        for message, where in rule(head, shape):
            raise GraphError(message, path + where)
    graph = build_graph(head, shape)
    for rule in (_gates, _masses):
        for message, where in rule(head, graph):
            raise GraphError(message, path + where)
    return graph


def _names(head: HeadSpec, shape: Shape) -> Iterator[Problem]:
    seen = {"hidden", "query", "key", "value", "pairs", "conv", "read", "output", "output_norm", "feature_map"}
    seen |= {"mix_input", "value_position", "value_position_back"}
    for index, memory in enumerate(head.memory):
        name = memory.name or memory.kind
        own = {name, f"{name}_features", f"{name}_gate", f"{name}_rate", f"{name}_error"}
        if name in RESERVED:
            yield f'PyTorch\'s modules have a "{name}" of their own; give this memory another name', ("memory", index, "name")
        if own & seen:
            taken = ", ".join(sorted(own & seen))
            yield f'two things in this head would be called "{taken}"; give this memory a `name:` of its own', ("memory", index)
        seen |= own


def _parts_are_used(head: HeadSpec, shape: Shape) -> Iterator[Problem]:
    readers = [index for index, memory in enumerate(head.memory) if memory.reads == "features"]
    if readers and head.feature_map is None:
        kind = head.memory[readers[0]].kind
        yield (
            f"a `{kind}` memory sees features, and the head has no `feature_map`; add one, such as `feature_map: hedgehog`",
            ("memory", readers[0]),
        )
    if not readers and head.feature_map is not None:
        yield (
            "no memory of this head sees features; remove `feature_map` (or set it to null), or add a state memory",
            ("feature_map",),
        )
    if not readers and head.conv is not None:
        yield "the convolution feeds features only, and no memory sees them; remove `conv` (or set it to null)", ("conv",)
    if len(head.memory) == 1 and head.memory[0].weight is not None:
        yield "a weight sets a memory against others, and this one is alone; remove `weight`", ("memory", 0, "weight")
    if len(head.memory) == 1 and head.flow == "parallel":
        yield "parallel memories need a second one; remove `flow`", ("flow",)
    looks = any(memory.reads == "inputs" or memory.weight == "token" for memory in head.memory)
    takes = any(memory.reads != "inputs" for memory in head.memory)
    if head.mix_input and head.mix_input.feeds == "inputs" and not looks:
        yield (
            "nothing in this head looks at the mixed inputs; add a `latents` memory or a `weight: token`, "
            "or say `feeds: qk` to mix what becomes queries and keys",
            ("mix_input",),
        )
    if head.mix_input and head.mix_input.feeds == "qk" and not takes:
        yield "latents have no queries and keys; say `feeds: inputs`", ("mix_input", "feeds")
    if head.mix_input and head.mix_input.both_ways and not shape.both_ways:
        yield "a causal head may not see tokens ahead; remove `both_ways`", ("mix_input", "both_ways")


def _both_ways(head: HeadSpec, shape: Shape) -> Iterator[Problem]:
    if not shape.both_ways:
        return
    for index, memory in enumerate(head.memory):
        problem = memory.problem_both_ways()
        if problem:
            yield f"{problem}, and the spec says `direction: bidirectional`", ("memory", index)
    if len(head.memory) > 1 and (head.flow == "cascade" or head.graph is not None):
        yield "nothing falls where every token sees all others; set `flow: parallel`", ("flow",)


def _edges(head: HeadSpec, shape: Shape) -> Iterator[Problem]:
    names = memory_names(head)
    inputs = {name for name, memory in zip(names, head.memory, strict=True) if memory.reads == "inputs"}
    if head.graph is None:
        if head.flow == "cascade" and inputs and len(names) > 1:
            index = names.index(min(inputs, key=names.index))
            yield (
                f"a `{head.memory[index].kind}` memory sees every token and no pairs that fall; set `flow: parallel`",
                ("memory", index),
            )
        return
    if head.flow != "cascade":
        yield "`graph` says where every memory gets its pairs, and so does `flow`; remove one of them", ("flow",)
    fed: dict[str, str] = {}
    for number, (start, end) in enumerate(edges(head)):
        where = ("graph", number)
        for name in {start, end} - {ALL, *names}:
            yield f'there is no "{name}" in this head; its memories are {", ".join(names)}, and all pairs come from `{ALL}`', where
        if end == ALL:
            yield "nothing flows into `pairs`: they come from the projections", where
        if start in inputs or end in inputs:
            yield "latents see every token and no pairs; leave this edge out", where
        if end in fed:
            yield f"`{end}` gets its pairs from `{fed[end]}` already; a memory has one source", where
        if start in names and end in names and names.index(start) >= names.index(end):
            yield f"pairs fall downwards: list `{end}` below `{start}` in `memory`", where
        fed[end] = start
    for index, name in enumerate(names):
        if name not in fed and name not in inputs:
            yield f"no edge brings pairs to this memory; add `pairs -> {name}`, or one from a memory above", ("memory", index)


def _falling(head: HeadSpec, shape: Shape) -> Iterator[Problem]:
    feeds, names = sources_of_pairs(head), memory_names(head)
    beside = [memory for name, memory in zip(names, head.memory, strict=True) if feeds.get(name, ALL) == ALL]
    kept = len(beside) > 1 and not all(memory.bounded for memory in beside)
    for index, (name, memory) in enumerate(zip(names, head.memory, strict=True)):
        receives = fed_by(head, name)
        if receives and not memory.bounded:
            yield (
                f"nothing ever falls out of a `{memory.kind}` memory, so the one below it stays empty; "
                "put it last, or set `flow: parallel`",
                ("memory", index),
            )
        chunks = isinstance(memory, Window) and memory.shape == "terraced"
        for one in receives if chunks else ():
            if not isinstance(head.memory[names.index(one)], (Sparse, Recurrent)):
                yield (
                    "pairs fall out of a terraced window many at a token, which only a sparse cache or a state can take; "
                    "say `shape: sliding`, or put one of those below it",
                    ("memory", index, "shape"),
                )
        if not isinstance(memory, (Window, Sparse)):
            continue
        if receives and memory.evict == "drop":
            yield "it drops its evicted pairs, so the memory below it stays empty; remove `evict: drop`", ("memory", index, "evict")
        lost = not receives and not (kept and memory in beside)
        if lost and memory.evict != "drop":
            yield (
                f"pairs beyond the {memory.size} that it holds fall out of this memory and into nothing; "
                "add a memory below it, such as `state`, or say `evict: drop`",
                ("memory", index),
            )


def _sparse(head: HeadSpec, shape: Shape) -> Iterator[Problem]:
    """A sparse cache looks at the state below it, and at the window above."""
    names, feeds = memory_names(head), sources_of_pairs(head)
    for index, (name, memory) in enumerate(zip(names, head.memory, strict=True)):
        below = [head.memory[names.index(one)] for one in fed_by(head, name)]
        above = feeds.get(name, ALL)
        window = head.memory[names.index(above)] if above in names else None
        if not isinstance(memory, Sparse):
            continue
        if len(below) > 1 or any(not isinstance(one, Recurrent) for one in below):
            yield (
                "what falls out of a sparse cache goes into one state; put a `state` (or `delta`) memory below it",
                ("memory", index),
            )
        if not below and (memory.asks_below or memory.error):
            yield (
                f"`keep: {memory.keep}` compares a pair with the state below, and there is none; "
                "add a `state` memory, or keep `recent` or `random` pairs",
                ("memory", index, "keep"),
            )
        if memory.error and not isinstance(window, Window):
            yield (
                f"`keep: {memory.keep}` sums over the queries that saw a pair in the window above, and there is none; "
                "put a `window` above it, or choose another score",
                ("memory", index, "keep"),
            )
        if memory.weight == "same" and (window is None or not window.exact or window.weight is None):
            yield (
                "`weight: same` takes the weight of the exact memory above, and there is none; "
                "give the memory above a `weight`, or this one its own",
                ("memory", index, "weight"),
            )


def _sizes(head: HeadSpec, shape: Shape) -> Iterator[Problem]:
    """What the parts themselves say of these sizes."""
    named = [("mix_input", head.mix_input), ("value_position", head.value_position)]
    for where, part in named:
        problem = part.problem(shape) if part else None
        if problem:
            yield problem, (where,)
    for index, memory in enumerate(head.memory):
        problem = memory.problem(shape)
        if problem:
            yield problem, ("memory", index)


def _feature_map(head: HeadSpec, shape: Shape) -> Iterator[Problem]:
    mapping = head.feature_map
    if mapping is None:
        return
    if mapping.skip and mapping.dim not in {None, shape.head_dim}:
        yield (
            f"xW + x needs W to keep the dimension: x has {shape.head_dim} numbers and xW has {mapping.dim}; "
            f"set `dim: {shape.head_dim}` (or leave it out), or `skip: false`",
            ("feature_map", "dim"),
        )
    for index, memory in enumerate(head.memory):
        if isinstance(memory, StateMemory) and memory.normalise and not mapping.positive:
            yield (
                f"`{mapping.kind}` features can be negative, so there is no mass to divide by; "
                "choose a positive feature map, or set `normalise: false`",
                ("memory", index),
            )


def _positions(head: HeadSpec, shape: Shape) -> Iterator[Problem]:
    for index, memory in enumerate(head.memory):
        if memory.reads == "inputs":
            continue
        if isinstance(memory.position, Rope) and shape.head_dim % 2:
            yield f"rope turns pairs of coordinates, and the head dimension is {shape.head_dim}", ("memory", index, "position")


def _gates(head: HeadSpec, graph: HeadGraph) -> Iterator[Problem]:
    for index, memory in enumerate(head.memory):
        if isinstance(memory, Recurrent) and memory.gate.rank_of_decay not in memory.decay_ranks:
            allowed = ", ".join(sorted(memory.decay_ranks))
            yield (
                f"the gate `{memory.gate.kind}` decays by rank `{memory.gate.rank_of_decay}`, "
                f"and this memory's recurrence takes {allowed}",
                ("memory", index, "gate"),
            )


def _masses(head: HeadSpec, graph: HeadGraph) -> Iterator[Problem]:
    if isinstance(head.read, Shared) and head.read.scale == "row_max" and len({memory.exact for memory in head.memory}) == 1:
        yield (
            "`scale: row_max` rescales exact memories against others; this head has not both: remove it",
            ("read", "scale"),
        )
    if head.read is None or head.read.leaves_masses_out:
        return
    for index, memory in enumerate(head.memory):
        if memory.reads == "inputs":
            yield "the shares of latents are probabilities, which only `read: mixture` weighs against others", ("memory", index)
    if head.read.takes_raw:
        return
    for index, memory in enumerate(head.memory):
        if not memory.has_mass():
            remedy = "set `normalise: true`, " if isinstance(memory, StateMemory) else "set "
            yield (
                f"`read: {head.read.kind}` gives all memories one denominator, and this `{memory.kind}` has no mass; "
                f"{remedy}`read: sum` to add its raw numerator, or `read: mixture`",
                ("memory", index),
            )
