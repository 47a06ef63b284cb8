"""What the flow of pairs may not be: rules of edges, of what falls where, and of what looks both ways."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from blocks.legend import Shape
from blocks.operation import Kind
from composer.errors import Path
from composer.graph.composition import HeadSpec
from composer.graph.flow_of_pairs import ALL, edges, fed_by, memory_names, sources_of_pairs

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
    inputs = {name for name, memory in zip(names, head.memory, strict=True) if memory.reads is Kind.HIDDEN}
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
    if any(name in memories and memories[name].reads is Kind.HIDDEN for name in (start, end)):
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
        if not memory.bounded:
            continue
        if receives and memory.drops:
            yield "it drops its evicted pairs, so the memory below it stays empty; remove `evict: drop`", ("memory", index, "evict")
        lost = not receives and not (kept and memory in beside)
        if lost and not memory.drops:
            yield (
                f"pairs beyond the {memory.pairs_held(shape, 0):.0f} that it holds fall out of this memory and into nothing; "
                + (f"add an edge `{name} -> NAME` to a memory below it" if head.graph else "add a memory below it, such as `state`")
                + ", or say `evict: drop`",
                ("memory", index),
            )


def between(head: HeadSpec, shape: Shape) -> Iterator[Problem]:
    """What memories say of those that feed them and of those that they feed."""
    memories, feeds = dict(zip(memory_names(head), head.memory, strict=True)), sources_of_pairs(head)
    for index, (name, memory) in enumerate(memories.items()):
        below = {one: memories[one] for one in fed_by(head, name)}
        for message, where in memory.problem_between(memories.get(feeds.get(name, ALL)), below, edges=head.graph is not None):
            if where[:1] == ("graph",):
                yield message, ("graph", edges(head).index((name, str(where[1]))))
            else:
                yield message, ("memory", index, *where)
