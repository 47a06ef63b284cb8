"""The source of each memory's pairs in a spec: the memory above in a cascade, the call, or the edges of its ``graph``."""

from __future__ import annotations

from blocks.operation import Kind
from composer.graph.composition import HeadSpec

ALL = "pairs"
"""The source of every pair of the call."""


def memory_names(head: HeadSpec) -> list[str]:
    """The names of the memories, top to bottom."""
    return [memory.called for memory in head.memory]


def features_of(name: str) -> str:
    """The name of the node for a memory's feature map."""
    return f"{name}_features"


def gate_of(name: str) -> str:
    """The name of the node for a memory's gate."""
    return f"{name}_gate"


def edges(head: HeadSpec) -> list[tuple[str, str]]:
    """The ends of each of the head's own edges, ``a -> b``, in their order; none where it has no ``graph``."""
    ends = (edge.split("->") for edge in head.graph or ())
    return [(start.strip(), end.strip()) for start, end in ends]


def sources_of_pairs(head: HeadSpec) -> dict[str, str]:
    """For each memory by name, the memory above that feeds it, or ``pairs``. Parallel memories that take no pairs are left out."""
    names = memory_names(head)
    if head.graph is not None:
        return {end: start for start, end in edges(head)}
    if head.flow == "parallel" or len(names) == 1:
        takers = [name for name, memory in zip(names, head.memory, strict=True) if memory.reads is not Kind.HIDDEN]
        return dict.fromkeys(takers, ALL)
    return dict(zip(names, [ALL, *names], strict=False))


def fed_by(head: HeadSpec, name: str) -> list[str]:
    """The memories into which the pairs fall that this one evicts."""
    return [below for below, above in sources_of_pairs(head).items() if above == name]
