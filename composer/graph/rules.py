"""What a head may not be. Each rule looks at the spec or its graph, and says where, why, and what to do instead."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from blocks.legend import Shape
from blocks.memories.state import StateMemory
from blocks.memories.window import Window
from blocks.positions import Rope
from composer.errors import GraphError
from composer.graph.graph import HeadGraph, build_graph

if TYPE_CHECKING:
    from composer.spec.document import HeadSpec

# What ``torch.nn.ModuleDict`` calls its own methods and settings: no parameter can stand under such a name.
RESERVED = frozenset(
    """
    add_module apply bfloat16 buffers call_super_init children clear compile cpu cuda double dump_patches empty_state eval
    extra_repr float forward get_buffer get_extra_state get_parameter get_submodule half ipu items keys load_state_dict modules
    mtia named_buffers named_children named_modules named_parameters parameters pop register_backward_hook register_buffer
    register_forward_hook register_forward_pre_hook register_full_backward_hook register_full_backward_pre_hook
    register_load_state_dict_post_hook register_load_state_dict_pre_hook register_module register_parameter
    register_state_dict_post_hook register_state_dict_pre_hook requires_grad_ set_extra_state set_submodule share_memory
    smart_apply state_dict to to_empty train training type update values xpu zero_grad
    """.split()  # noqa: SIM905 - a list literal would fill the screen
)
Problem = tuple[str, tuple[str | int, ...]]


def checked_graph(head: HeadSpec, shape: Shape, path: tuple[str | int, ...]) -> HeadGraph:
    """The head's graph, or a GraphError at ``path`` for the first rule that it breaks."""
    for rule in (_names, _parts_are_used, _falling, _feature_map, _positions):
        for message, where in rule(head, shape):
            raise GraphError(message, path + where)
    graph = build_graph(head, shape)
    for rule in (_gates, _masses):
        for message, where in rule(head, graph):
            raise GraphError(message, path + where)
    return graph


def _names(head: HeadSpec, shape: Shape) -> Iterator[Problem]:
    seen: set[str] = {"hidden", "query", "key", "value", "pairs", "conv", "read", "output", "output_norm", "feature_map"}
    for index, memory in enumerate(head.memory):
        name = memory.name or memory.kind
        own = {name, f"{name}_features", f"{name}_gate"}
        if name in RESERVED:
            yield f'PyTorch\'s modules have a "{name}" of their own; give this memory another name', ("memory", index, "name")
        if own & seen:
            taken = ", ".join(sorted(own & seen))
            yield f'two things in this head would be called "{taken}"; give this memory a `name:` of its own', ("memory", index)
        seen |= own


def _parts_are_used(head: HeadSpec, shape: Shape) -> Iterator[Problem]:
    readers = [index for index, memory in enumerate(head.memory) if memory.reads == "features"]
    if readers and head.feature_map is None:
        yield (
            "a state memory sees features, and the head has no `feature_map`; add one, such as `feature_map: hedgehog`",
            (
                "memory",
                readers[0],
            ),
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


def _falling(head: HeadSpec, shape: Shape) -> Iterator[Problem]:
    last = len(head.memory) - 1
    for index, memory in enumerate(head.memory):
        receives = head.flow == "cascade" and index < last
        if receives and not memory.bounded:
            yield (
                f"nothing ever falls out of a `{memory.kind}` memory, so the one below it stays empty; "
                "put it last, or set `flow: parallel`",
                ("memory", index),
            )
        if not isinstance(memory, Window):
            continue
        if receives and memory.evict == "drop":
            yield "it drops its evicted pairs, so the memory below it stays empty; remove `evict: drop`", ("memory", index, "evict")
        lost = all(other.bounded for other in head.memory) if head.flow == "parallel" else index == last
        if lost and memory.evict != "drop":
            yield (
                f"pairs older than {memory.size} tokens fall out of this memory and into nothing; "
                "add a memory below it, such as `state`, or say `evict: drop`",
                ("memory", index),
            )


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
        if isinstance(memory.position, Rope) and shape.head_dim % 2:
            yield f"rope turns pairs of coordinates, and the head dimension is {shape.head_dim}", ("memory", index, "position")


def _gates(head: HeadSpec, graph: HeadGraph) -> Iterator[Problem]:
    for index, memory in enumerate(head.memory):
        if isinstance(memory, StateMemory) and memory.gate.rank_of_decay not in memory.decay_ranks:
            allowed = ", ".join(sorted(memory.decay_ranks))
            yield (
                f"the gate `{memory.gate.kind}` decays by rank `{memory.gate.rank_of_decay}`, "
                f"and this memory's recurrence takes {allowed}",
                ("memory", index, "gate"),
            )


def _masses(head: HeadSpec, graph: HeadGraph) -> Iterator[Problem]:
    if head.read is None or head.read.leaves_masses_out or head.read.takes_raw:
        return
    for index, memory in enumerate(head.memory):
        if not memory.has_mass():
            yield (
                f"`read: {head.read.kind}` gives all memories one denominator, and this one is not normalised: it has no mass; "
                "set `normalise: true`, or `read: sum` to add its raw numerator",
                ("memory", index),
            )
