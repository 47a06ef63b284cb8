"""The elements of a head, as a spec lists them, and which pairs each memory receives. The parts are those of ``blocks``."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from blocks.catalogue import (
    ConvolutionConfig,
    FeatureMapConfig,
    MemoryConfig,
    MixerConfig,
    OutputConfig,
    PositionConfig,
    QueryKeyNormConfig,
    ReadConfig,
    UnshareConfig,
    ValuePositionConfig,
)
from blocks.operation import Kind
from blocks.part import Closed
from blocks.positions import Rope

EdgeText = Annotated[str, StringConstraints(pattern=r"^\s*[a-z][a-z0-9_]*\s*->\s*[a-z][a-z0-9_]*\s*$")]

MOST_MEMORIES = 32
"""The most memories of a head; rules compare every pair of them."""


class HeadSpec(Closed):
    """What one kind of head is composed of."""

    mix_input: MixerConfig | None = None
    """Mixes the hidden states over time, for the logits of latents, or for queries and keys."""
    unshare: UnshareConfig | None = None
    """Keys and values of each query head's own, where a group of query heads shares them."""
    qk_norm: QueryKeyNormConfig | None = None
    """A norm of queries and keys, before all else is made of them."""
    position: PositionConfig = Rope()
    """How queries and keys are rotated; a memory may override it."""
    value_position: ValuePositionConfig | None = None
    """How values are rotated before memories, and the output after them."""
    conv: ConvolutionConfig | None = None
    """Feeds the features only: exact memories see the raw queries and keys."""
    feature_map: FeatureMapConfig | None = None
    """What a state memory sees of queries and keys."""
    memory: Annotated[tuple[MemoryConfig, ...], Field(min_length=1, max_length=MOST_MEMORIES)]
    """From top to bottom: in a cascade, each memory evicts pairs into the next."""
    flow: Literal["cascade", "parallel"] = "cascade"
    """cascade: a pair enters the first memory, and the next one when it is evicted. parallel: every memory receives every pair."""
    graph: Annotated[tuple[EdgeText, ...], Field(min_length=1, max_length=MOST_MEMORIES**2)] | None = None
    """Which pairs each memory receives, in place of `flow`: `pairs -> NAME` (every pair), `NAME -> NAME` (the first evicts into the
    second)."""
    read: ReadConfig | None = None
    """How several memories are weighed against each other. Left out: shared."""
    output: OutputConfig | None = None
    """What is applied to the head's output before the output projection."""


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
