"""Two specs beside each other, with what differs between their heads marked."""

from __future__ import annotations

from collections.abc import Iterator

from composer.drawing.picture import BETWEEN, Picture, picture, svg
from composer.graph.graph import HeadGraph
from composer.graph.wiring import build_graph
from composer.spec.resolve import Resolved, meaning

HeadKey = tuple[str, int]


def beside(first: Resolved, second: Resolved, *, on: str | None = None, sequence: int = 4096, dtype: str = "float32") -> Picture:
    """Both pictures as one. Parts of a head are marked where the other spec's head lacks or changes them; all of a head is marked
    where the other spec lacks it. Heads are compared by name, or where each spec has but one."""
    marks = _marks(first, second)
    left, right = (
        picture(spec, on=on, sequence=sequence, dtype=dtype, marked=marked)
        for spec, marked in zip((first, second), marks, strict=True)
    )
    wide, high = left.width + BETWEEN + right.width, max(left.height, right.height)
    inside = left.svg + right.svg.replace("<svg ", f'<svg x="{left.width + BETWEEN:.0f}" ', 1)
    return Picture(svg(inside, wide, high), wide, high)


def _marks(first: Resolved, second: Resolved) -> tuple[dict[HeadKey, frozenset[str]], dict[HeadKey, frozenset[str]]]:
    graphs = tuple({kind: build_graph(head, shape) for kind, (head, shape, _) in spec.kinds().items()} for spec in (first, second))
    return _find_changed(*graphs), _find_changed(*reversed(graphs))


def _find_changed(graphs: dict[HeadKey, HeadGraph], others: dict[HeadKey, HeadGraph]) -> dict[HeadKey, frozenset[str]]:
    """Nodes that the other spec's graphs lack, by head and number of its heads; all nodes of a head without a counterpart."""
    marked = {}
    for kind, graph in graphs.items():
        alike = [other for (name, _), other in others.items() if name == kind[0]]
        if len(graphs) == len(others) == 1:
            alike = list(others.values())
        known = set(_contents_of(alike[0])) if alike else set()
        marked[kind] = frozenset(name for name, means in _contents_of(graph) if (name, means) not in known)
    return marked


def _contents_of(graph: HeadGraph) -> Iterator[tuple[str, str]]:
    """Yield the name of each part's node, and a text of its meaning and inputs, to compare."""
    for node in graph.parts:
        fed = sorted((edge.start, edge.output, edge.input) for edge in graph.into(node.name))
        content = meaning(node.part) if node.main else getattr(node.part, "weight", None)
        yield node.name, repr((node.kind, content, fed))
