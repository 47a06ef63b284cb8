"""Checks of a spec before its graph is drawn: names, edges that lead from one memory down to another, and numbers.

Repeated and useless entries are refused here, too, as the graph does not show them.
"""

from __future__ import annotations

from collections.abc import Iterator

from blocks.part import Closed, FieldPath, Problem
from composer.graph.composition import HeadSpec
from composer.graph.flow_of_pairs import ALL, edges, memory_names
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


def names(head: HeadSpec) -> Iterator[Problem]:
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


def lines(head: HeadSpec) -> Iterator[Problem]:
    """The problems of ``flow`` and ``graph``."""
    if head.graph is not None and head.flow != "cascade":
        yield "both `graph` and `flow` define which pairs each memory receives; remove one of them", ("flow",)
    if len(head.memory) == 1 and head.flow == "parallel":
        yield "parallel memories need a second one; remove `flow`", ("flow",)
    names, fed = memory_names(head), dict[str, str]()
    for number, (start, end) in enumerate(edges(head)):
        where, order = ("graph", number), [name for name in names if name in (start, end)]
        unknown = [name for name in dict.fromkeys((start, end)) if name not in (ALL, *names)]
        for name in unknown:
            yield f'there is no "{name}" in this head; choose one of {", ".join(names)}, or `{ALL}` for all pairs', where
        if end == ALL:
            yield "`pairs` cannot be the end of an edge: the projections compute them", where
        if end in fed:
            yield f"`{end}` gets its pairs from `{fed[end]}` already; a memory has one source", where
        if start == end:
            yield f"a memory cannot feed itself; use `{ALL} -> {end}`, or an edge from a memory above", where
        if order == [end, start]:
            yield f"memories evict pairs downwards: list `{end}` below `{start}` in `memory`", where
        fed[end] = start


def numbers(part: Closed, path: FieldPath = ()) -> Iterator[Problem]:
    """Problems with the numbers of a part, and of parts inside it; a seed may be any number."""
    for name, value in part:
        for index, item in enumerate(value if isinstance(value, tuple) else (value,)):
            where = (*path, name, index) if isinstance(value, tuple) else (*path, name)
            if isinstance(item, Closed):
                yield from numbers(item, where)
            elif isinstance(item, int) and name != "seed" and item > LARGEST:
                yield f"no size is larger than {LARGEST:,}; lower `{name}`", where
            elif isinstance(item, float) and item and not SMALLEST <= abs(item) <= 1 / SMALLEST:
                yield (
                    f"numbers reach from {SMALLEST:g} to {1 / SMALLEST:g}, and this is {item:g}; change `{name}`",
                    where,
                )
