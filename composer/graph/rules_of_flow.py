"""What the flow of pairs may not be: rules of edges, of what falls where, and of what looks both ways."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from blocks.legend import Shape
from blocks.memories.recurrent import Recurrent
from blocks.memories.sparse import Sparse
from blocks.memories.window import Window
from composer.graph.wires import ALL, edges, fed_by, memory_names, sources_of_pairs

if TYPE_CHECKING:
    from composer.spec.document import HeadSpec

Path = tuple[str | int, ...]
Problem = tuple[str, Path]


def both_ways(head: HeadSpec, shape: Shape) -> Iterator[Problem]:
    if not shape.both_ways:
        return
    for index, memory in enumerate(head.memory):
        problem = memory.problem_both_ways()
        if problem:
            yield f"{problem}, and the spec says `direction: bidirectional`; change one of them", ("memory", index)
    if head.graph is not None:
        yield "no pair goes its own way where every token sees all others; remove `graph`, and set `flow: parallel`", ("graph",)
    elif len(head.memory) > 1 and head.flow == "cascade":
        yield "nothing falls where every token sees all others; set `flow: parallel`", ("flow",)


def along_edges(head: HeadSpec, shape: Shape) -> Iterator[Problem]:
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
        for message in _of_an_edge(head, start, end, fed):
            yield message, ("graph", number)
        fed[end] = start
    for index, name in enumerate(names):
        if name not in fed and name not in inputs:
            yield f"no edge brings pairs to this memory; add `pairs -> {name}`, or one from a memory above", ("memory", index)


def _of_an_edge(head: HeadSpec, start: str, end: str, fed: Mapping[str, str]) -> Iterator[str]:
    """What is wrong with one edge. fed: by those before it, each memory's source."""
    memories = dict(zip(memory_names(head), head.memory, strict=True))
    for name in {start, end} - {ALL, *memories}:
        yield f'there is no "{name}" in this head; its memories are {", ".join(memories)}, and all pairs come from `{ALL}`'
    if end == ALL:
        yield "nothing flows into `pairs`: they come from the projections"
    if any(name in memories and memories[name].reads == "inputs" for name in (start, end)):
        yield "latents see every token and no pairs; leave this edge out"
    if end in fed:
        yield f"`{end}` gets its pairs from `{fed[end]}` already; a memory has one source"
    if start == end:
        yield f"a memory cannot feed itself; say `{ALL} -> {end}`, or an edge from a memory above"
    if start in memories and not memories[start].bounded:
        yield f"nothing ever falls out of a `{memories[start].kind}` memory, so `{end}` would stay empty; say `{ALL} -> {end}`"
    order = [name for name in memories if name in (start, end)]
    if order == [end, start]:
        yield f"pairs fall downwards: list `{end}` below `{start}` in `memory`"


def falling(head: HeadSpec, shape: Shape) -> Iterator[Problem]:
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
                remedy = f"`{ALL} -> {one}`" if head.graph else "put one of those below it"
                yield (
                    "pairs fall out of a terraced window many at a token, which only a sparse cache or a state can take; "
                    f"say `shape: sliding`, or {remedy}",
                    _edge(head, name, one) or ("memory", index, "shape"),
                )
        if not isinstance(memory, (Window, Sparse)):
            continue
        if receives and memory.evict == "drop":
            yield "it drops its evicted pairs, so the memory below it stays empty; remove `evict: drop`", ("memory", index, "evict")
        lost = not receives and not (kept and memory in beside)
        if lost and memory.evict != "drop":
            yield (
                f"pairs beyond the {memory.size} that it holds fall out of this memory and into nothing; "
                + (f"add an edge `{name} -> NAME` to a memory below it" if head.graph else "add a memory below it, such as `state`")
                + ", or say `evict: drop`",
                ("memory", index),
            )


def into_sparse(head: HeadSpec, shape: Shape) -> Iterator[Problem]:
    """A sparse cache looks at the state below it, and at the window above."""
    names, feeds = memory_names(head), sources_of_pairs(head)
    for index, (name, memory) in enumerate(zip(names, head.memory, strict=True)):
        below = fed_by(head, name)
        above = feeds.get(name, ALL)
        window = head.memory[names.index(above)] if above in names else None
        if not isinstance(memory, Sparse):
            continue
        wrong = [one for number, one in enumerate(below) if number or not isinstance(head.memory[names.index(one)], Recurrent)]
        for one in wrong:
            yield (
                "what falls out of a sparse cache goes into one state; "
                + (f"say `{ALL} -> {one}`" if head.graph else "put a `state` (or `delta`) memory below it"),
                _edge(head, name, one) or ("memory", index),
            )
        if not below and memory.keep.reads != "pair":
            yield (
                f"`keep: {memory.keep.kind}` compares a pair with the state below, and there is none; "
                + (f"add an edge `{name} -> NAME` to a `state`" if head.graph else "add a `state` memory")
                + ", or keep `recent` or `random` pairs",
                ("memory", index, "keep"),
            )
        if memory.keep.reads == "window" and not isinstance(window, Window):
            yield (
                f"`keep: {memory.keep.kind}` sums over the queries that saw a pair in the window above, and there is none; "
                + ("let it get its pairs from a `window`" if head.graph else "put a `window` above it")
                + ", or choose another score",
                ("memory", index, "keep"),
            )
        if memory.weight == "same" and (window is None or not window.exact or window.weight is None):
            yield (
                "`weight: same` takes the weight of the exact memory above, and there is none; "
                "give the memory above a `weight`, or this one its own",
                ("memory", index, "weight"),
            )


def _edge(head: HeadSpec, start: str, end: str) -> Path:
    """Where the head says this edge; nothing where it has no edges of its own."""
    return ("graph", edges(head).index((start, end))) if head.graph else ()
