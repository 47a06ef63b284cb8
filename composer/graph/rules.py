"""What a head may not be. Each rule looks at the spec or its graph, and says where, why, and what to do instead."""

from __future__ import annotations

from collections.abc import Iterator

from blocks.legend import Shape
from blocks.operation import Kind
from blocks.part import Closed
from composer.errors import GraphError, Path
from composer.graph.composition import HeadSpec
from composer.graph.flow_of_pairs import features_of, gate_of
from composer.graph.graph import HeadGraph, build_graph
from composer.graph.rules_of_flow import Problem, along_edges, between, both_ways, falling
from converters.config import LARGEST

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


def checked_graph(head: HeadSpec, shape: Shape, path: Path) -> HeadGraph:
    """The head's graph, or a GraphError at ``path`` for the first rule that it breaks."""
    for rule in (_names, both_ways, along_edges, _parts_are_used, falling, between, _sizes, _feature_map, _positions):
        for message, where in rule(head, shape):
            raise GraphError(message, path + where)
    graph = build_graph(head, shape)
    for rule in (_ports, _masses):
        for message, where in rule(head, graph):
            raise GraphError(message, path + where)
    return graph


def _names(head: HeadSpec, shape: Shape) -> Iterator[Problem]:
    seen = {"hidden", "query", "key", "value", "pairs", "conv", "read", "output", "output_norm", "feature_map"}
    seen |= {"mix_input", "unshare", "qk_norm", "value_position", "value_position_back", "host_sinks", "with_host_sinks"}
    called: set[str] = set()
    for index, memory in enumerate(head.memory):
        name = memory.called
        own = {name, features_of(name), gate_of(name), *memory.rates(), *(number.name for number in memory.sums(shape))}
        if name in RESERVED:
            yield f'PyTorch\'s modules have a "{name}" of their own; give this memory another name', ("memory", index, "name")
        if name in called:
            yield (
                f'two memories of this head are called "{name}"; give this one a `name:` of its own, such as `name: {name}2`',
                ("memory", index),
            )
        elif own & seen:
            taken = ", ".join(sorted(own & seen))
            yield f'two things in this head would be called "{taken}"; give this memory a `name:` of its own', ("memory", index)
        seen |= own
        called.add(name)


def _parts_are_used(head: HeadSpec, shape: Shape) -> Iterator[Problem]:
    readers = [index for index, memory in enumerate(head.memory) if memory.reads is Kind.FEATURES]
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
    if not readers and head.conv is not None and head.conv.inputs != ("v",):
        yield (
            "of queries and keys the convolution feeds features only, and no memory sees them; remove `conv` (or set it to null), "
            "or say `inputs: [v]`",
            ("conv",),
        )
    latents = all(memory.reads is Kind.HIDDEN for memory in head.memory)
    if head.unshare is not None and "k" in head.unshare.inputs:
        if latents:
            yield "latents have no keys; say `inputs: [v]`, or remove `unshare` (or set it to null)", ("unshare",)
        if head.mix_input and head.mix_input.feeds == "qk":
            yield (
                "keys of each query head's own are projected from the hidden states, and the shared ones here from what is mixed; "
                "say `inputs: [v]`, or remove `mix_input` (or set it to null)",
                ("unshare",),
            )
    if head.qk_norm is not None and latents:
        yield "latents have no queries and keys; remove `qk_norm` (or set it to null)", ("qk_norm",)
    if len(head.memory) == 1 and head.memory[0].weight is not None:
        yield "a weight sets a memory against others, and this one is alone; remove `weight`", ("memory", 0, "weight")
    if len(head.memory) == 1 and head.flow == "parallel":
        yield "parallel memories need a second one; remove `flow`", ("flow",)
    looks = any(memory.reads is Kind.HIDDEN or memory.weight == "token" for memory in head.memory)
    takes = any(memory.reads is not Kind.HIDDEN for memory in head.memory)
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


def _sizes(head: HeadSpec, shape: Shape) -> Iterator[Problem]:
    """No size is beyond what can be meant; and what the parts themselves say of these sizes."""
    for name, where in _too_large(head):
        yield f"no size is larger than {LARGEST:,}; lower `{name}`", where
    named = [("mix_input", head.mix_input), ("value_position", head.value_position)]
    for where, part in named:
        problem = part.problem(shape) if part else None
        if problem:
            yield problem, (where,)
    for index, memory in enumerate(head.memory):
        problem = memory.problem(shape)
        if problem:
            yield problem, ("memory", index)


def _too_large(part: Closed, path: Path = ()) -> Iterator[tuple[str, Path]]:
    """The fields of a part, and of those inside it, that are beyond what can be meant; a seed may be any number."""
    for name, said in part:
        for index, item in enumerate(said if isinstance(said, tuple) else (said,)):
            where = (*path, name, index) if isinstance(said, tuple) else (*path, name)
            if isinstance(item, Closed):
                yield from _too_large(item, where)
            elif isinstance(item, int) and name != "seed" and item > LARGEST:
                yield name, where


def _feature_map(head: HeadSpec, shape: Shape) -> Iterator[Problem]:
    mapping = head.feature_map
    if mapping is not None and mapping.skip and mapping.dim not in {None, shape.head_dim}:
        yield (
            f"xW + x needs W to keep the dimension: x has {shape.head_dim} numbers and xW has {mapping.dim}; "
            f"set `dim: {shape.head_dim}` (or leave it out), or `skip: false`",
            ("feature_map", "dim"),
        )
    for index, memory in enumerate(head.memory):
        for message, where in memory.problem_with(mapping):
            yield message, ("memory", index, *where)
        gate = memory.gates
        problem = gate.problem(shape, mapping.features(shape)) if gate and mapping else None
        if problem:
            yield problem, ("memory", index, "gate")


def _positions(head: HeadSpec, shape: Shape) -> Iterator[Problem]:
    for index, memory in enumerate(head.memory):
        problem = None if memory.reads is Kind.HIDDEN else memory.turn.problem(shape)
        if problem:
            yield problem, ("memory", index, "position")


def _ports(head: HeadSpec, graph: HeadGraph) -> Iterator[Problem]:
    """Every edge joins ports of one kind and size, every input that is needed has one, and only where it takes many, several."""
    for node in graph.nodes.values():
        for port in node.operation.reads:
            edges = graph.into(node.name, port.name)
            for edge in edges:
                wrong = [
                    f"{found} {what}, and it reads {wanted}"
                    for what, found, wanted in (
                        ("is what comes", edge.kind, port.kind),
                        ("heads", edge.heads, port.heads),
                        ("coordinates", edge.dim, port.dim),
                    )
                    if wanted is not None and found != wanted
                ]
                if wrong:
                    yield f"`{edge.start}` does not fit `{node.name}`: {'; '.join(wrong)}", node.path or ()
            if port.needed and not edges:
                yield f"nothing gives `{node.name}` its {port.name}", node.path or ()
            if len(edges) > 1 and not port.many:
                given = ", ".join(f"`{edge.start}`" for edge in edges)
                yield f"`{node.name}` reads one {port.name}, and {given} give it", node.path or ()


def _masses(head: HeadSpec, graph: HeadGraph) -> Iterator[Problem]:
    if head.read is None:
        return
    problem = head.read.problem([memory.exact for memory in head.memory])
    if problem:
        yield problem[0], ("read", problem[1])
    if head.read.leaves_masses_out:
        return
    for index, memory in enumerate(head.memory):
        if memory.reads is Kind.HIDDEN:
            yield "the shares of latents are probabilities, which only `read: mixture` weighs against others", ("memory", index)
    if head.read.takes_raw:
        return
    for index, memory in enumerate(head.memory):
        if not memory.has_mass():
            remedy = memory.to_have_mass or "set "
            yield (
                f"`read: {head.read.kind}` gives all memories one denominator, and this `{memory.kind}` has no mass; "
                f"{remedy}`read: sum` to add its raw numerator, or `read: mixture`",
                ("memory", index),
            )
