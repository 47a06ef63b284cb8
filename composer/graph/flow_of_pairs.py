"""The source of each memory's pairs in a spec: the memory above in a cascade, the call, or the edges of its ``graph``."""

from __future__ import annotations

from blocks.operation import Kind
from composer.graph.composition import HeadSpec

ALL = "pairs"
"""The source of every pair of the call."""


def memory_names(head: HeadSpec) -> list[str]:
    """Return the names of the memories, top to bottom."""
    return [memory.called for memory in head.memory]


def features_of(name: str) -> str:
    """Return the name of the node for a memory's feature map of queries."""
    return f"{name}_features"


def keys_of(name: str) -> str:
    """Return the name of the node for a memory's feature map of the pairs that enter it."""
    return f"{name}_keys"


def gate_of(name: str) -> str:
    """Return the name of the node for a memory's gate."""
    return f"{name}_gate"


def edges(head: HeadSpec) -> list[tuple[str, str]]:
    """Return the ends of each of the head's own edges, ``a -> b``, in their order; none where it has no ``graph``."""
    ends = (edge.split("->") for edge in head.graph or ())
    return [(start.strip(), end.strip()) for start, end in ends]


def sources_of_pairs(head: HeadSpec) -> dict[str, str]:
    """For each memory by name, the memory above that feeds it, or ``pairs``. Parallel memories that read no pairs are left out."""
    names = memory_names(head)
    if head.graph is not None:
        return {end: start for start, end in edges(head)}
    if head.flow == "parallel" or len(names) == 1:
        takers = [name for name, memory in zip(names, head.memory, strict=True) if memory.reads is not Kind.HIDDEN]
        return dict.fromkeys(takers, ALL)
    return dict(zip(names, [ALL, *names], strict=False))


def without_names(head: HeadSpec) -> HeadSpec:
    """Return the same head in its canonical form, independent of the names of its memories.

    Memories are called by their kind, with a number if there are several of it. ``graph`` is left out if ``flow`` is equivalent;
    otherwise its edges are in the order of the memories that they enter.
    """
    kinds = [memory.word for memory in head.memory]
    names = [kind if kinds.count(kind) == 1 else f"{kind}_{kinds[:index].count(kind) + 1}" for index, kind in enumerate(kinds)]
    canonical_names, sources = dict(zip(memory_names(head), names, strict=True)) | {ALL: ALL}, sources_of_pairs(head)
    called = tuple(memory.model_copy(update={"name": name}) for memory, name in zip(head.memory, names, strict=True))
    for flow in ("cascade", "parallel"):
        plain = head.model_copy(update={"flow": flow, "graph": None})
        if sources_of_pairs(plain) == sources:
            return plain.model_copy(update={"memory": called})
    drawn = tuple(f"{canonical_names[sources[name]]} -> {canonical_names[name]}" for name in memory_names(head) if name in sources)
    return head.model_copy(update={"memory": called, "graph": drawn, "flow": "cascade"})


def fed_by(head: HeadSpec, name: str) -> list[str]:
    """Return the memories into which this one evicts pairs."""
    return [below for below, above in sources_of_pairs(head).items() if above == name]
