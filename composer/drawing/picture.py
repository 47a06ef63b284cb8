"""The picture of a resolved spec: its name, the map of its layers, and the graph of every kind of head.

Two specs are drawn beside each other, with what differs between their heads marked.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from blocks.legend import Shape
from composer.drawing.head import draw_head
from composer.drawing.layers import letters, map_of_layers
from composer.drawing.style import element, escape_svg, fit_text, lines_of, style, width
from composer.errors import ComposerError
from composer.graph.composition import HeadSpec
from composer.graph.graph import HeadGraph
from composer.graph.wiring import build_graph
from composer.reporting.words import layers_in_words, plural, size
from composer.spec.dimensions import Dimensions
from composer.spec.explain import COUNTER, state_bytes, state_size
from composer.spec.resolve import Kinds, Resolved, meaning
from composer.system.files import write_whole
from converters.shard import BYTES

TYPICAL = Dimensions(hidden_size=2048, layers=16, heads=32, key_heads=8, head_dim=64, rope_theta=5e5)
TYPICAL_OF = "the sizes of Llama-3.2-1B"
"""The sizes that a spec is drawn on where no source is named, in words."""
MARGIN, BETWEEN = 20.0, 28.0
NARROWEST, WIDEST = 440.0, 820.0
"""The least and the most width of a picture, where its contents allow: a README shows the latter without scaling it."""


@dataclass(frozen=True)
class Picture:
    """SVG, and its size in pixels. A notebook shows it; ``save`` writes it."""

    svg: str
    width: float
    height: float

    def _repr_svg_(self) -> str:
        return self.svg

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the picture, whole or not at all. Raises ComposerError for another name than that of an .svg file, and OSError."""
        check_name(path)
        write_whole(Path(path), self.svg)


def check_name(path: str | os.PathLike[str]) -> None:
    """Raise ComposerError if a file is not named as SVG is."""
    if Path(path).suffix.lower() != ".svg":
        raise ComposerError(f"{path}: pictures are SVG; name a file that ends in .svg")


@dataclass
class _Sheet:
    """Elements on their way down a picture."""

    elements: list[str]
    width: float
    y: float


def picture(
    resolved: Resolved,
    *,
    on: str | None = None,
    sequence: int = 4096,
    dtype: str = "float32",
    marked: Mapping[tuple[str, int], frozenset[str]] | None = None,
) -> Picture:
    """Return the picture of a spec. on: the origin of its sizes in words. sequence: tokens at which a growing state is counted, and
    the source's cache. dtype: that the model computes in. marked: nodes to mark, by head and number of its heads."""
    kinds = resolved.kinds()
    graphs = {kind: build_graph(head, shape) for kind, (head, shape, _) in kinds.items()}
    sheet = _Sheet([], NARROWEST, MARGIN)
    panels = {kind: draw_head(graph, sequence, dtype, (marked or {}).get(kind, frozenset())) for kind, graph in graphs.items()}
    widest = max([NARROWEST, *(wide for _, wide, _ in panels.values())])
    _heading(sheet, resolved, on, widest)
    _figures(sheet, resolved, kinds, graphs, sequence, dtype, widest)
    named = letters(list(kinds))
    elements, wide, high = map_of_layers(resolved, named, MARGIN, sheet.y)
    sheet.elements += elements
    sheet.width, sheet.y = max(sheet.width, wide), sheet.y + high + BETWEEN
    _panels(sheet, panels, {kind: _says(named[kind], kind, kinds[kind], several=len(kinds) > 1) for kind in kinds})
    return _whole(sheet, resolved.name)


def _heading(sheet: _Sheet, resolved: Resolved, on: str | None, most: float) -> None:
    _text(sheet, fit_text(resolved.name, most, 18, bold=True), 18, "name", 22)
    size_ = resolved.dimensions
    heads = f"{size_.heads:,} query and {size_.key_heads:,} key heads of {size_.head_dim:,} numbers"
    heads += "" if size_.value_dim is None else f", values of {size_.value_dim:,}"
    _lines(sheet, [*([f"on {on}"] if on else []), plural(size_.layers, "layer"), heads], most)
    _lines(sheet, [resolved.paper] if resolved.paper else [], most)


def _figures(
    sheet: _Sheet,
    resolved: Resolved,
    kinds: Kinds,
    graphs: Mapping[tuple[str, int], HeadGraph],
    tokens: int,
    dtype: str,
    most: float,
) -> None:
    """The bytes of the state for one row of a batch, beside the source's cache."""
    if resolved.direction != "causal":
        _text(sheet, "Every token sees those after it, too: no state is kept.", 12, "said", 17)
        sheet.y += 8
        return
    state = COUNTER + sum(
        len(layers) * state_bytes(state_size(graphs[kind], tokens), dtype) for kind, (_, _, layers) in kinds.items()
    )
    size_ = resolved.dimensions
    cache = tokens * len(size_.with_attention) * size_.cached_per_token * BYTES[dtype]
    grows = any(memory.grows for head, _, _ in kinds.values() for memory in head.memory)
    _text(sheet, f"State {size(state)}" + (f" at {tokens:,} tokens, and growing" if grows else " at any length"), 13, "state", 18)
    beside = f"softmax attention's KV cache: {size(cache)} at {tokens:,} tokens"
    _lines(sheet, [f"of one text, in {dtype}", beside], most)
    sheet.y += 8


def _lines(sheet: _Sheet, pieces: list[str], most: float) -> None:
    """Write the pieces below a heading, in as many lines as they need."""
    for line in lines_of(pieces, most, 12):
        _text(sheet, line, 12, "said", 17)


def _text(sheet: _Sheet, text: str, font: int, name: str, leading: float) -> None:
    sheet.y += leading
    sheet.elements.append(element("text", escape_svg(text), class_=f"cd-{name}", x=MARGIN, y=sheet.y - 5, font_size=font))
    sheet.width = max(sheet.width, width(text, font, bold=name in ("name", "state")))


def _says(letter: str, kind: tuple[str, int], about: tuple[HeadSpec, Shape, list[int]], *, several: bool) -> str:
    name, heads = kind
    where = _where(about[2])
    return f"{letter}: {name}, " + (f"{plural(heads, 'query head')} of {where}" if several else f"in {where}")


def _where(numbers: Sequence[int]) -> str:
    """layers 0 to 3, 6; or, of evenly spaced ones, layers 0, 2, … 14."""
    steps = {second - first for first, second in pairwise(numbers)}
    if len(numbers) > 3 and len(steps) == 1 and steps != {1}:
        return f"layers {numbers[0]}, {numbers[1]}, … {numbers[-1]}"
    return layers_in_words(numbers)


def _panels(
    sheet: _Sheet, panels: Mapping[tuple[str, int], tuple[list[str], float, float]], says: Mapping[tuple[str, int], str]
) -> None:
    """Place the heads' graphs side by side, in as many rows as they need."""
    x, lowest = 0.0, sheet.y
    for kind, (elements, wide, high) in panels.items():
        title = fit_text(says[kind], max(wide, NARROWEST), 13, bold=True)
        across = max(wide, width(title, 13, bold=True))
        if x and x + across > WIDEST - 2 * MARGIN:
            x, sheet.y = 0.0, lowest + BETWEEN
        left = MARGIN + x
        sheet.elements.append(element("text", escape_svg(title), class_="cd-state cd-panel", x=left, y=sheet.y + 13, font_size=13))
        moved = f"translate({left + (across - wide) / 2:.1f} {sheet.y + 28:.1f})"
        sheet.elements.append(element("g", elements, transform=moved))
        lowest = max(lowest, sheet.y + 28 + high)
        x += across + BETWEEN
        sheet.width = max(sheet.width, x - BETWEEN)
    sheet.y = lowest


def _whole(sheet: _Sheet, name: str) -> Picture:
    wide, high = sheet.width + 2 * MARGIN, sheet.y + MARGIN
    ground = element("rect", class_="cd-ground", x=0.5, y=0.5, width=wide - 1, height=high - 1, rx=8)
    title = element("title", escape_svg(f"{name}: its heads and layers"))
    elements = "\n".join([ground, *sheet.elements])
    inside = f"{title}\n{element('style', style(elements))}\n{elements}"
    return Picture(svg(inside + "\n", wide, high), wide, high)


def svg(inside: str, wide: float, high: float) -> str:
    """Return a complete SVG document."""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="cd-picture" role="img" width="{wide:.0f}" height="{high:.0f}" '
        f'viewBox="0 0 {wide:.0f} {high:.0f}">\n{inside}</svg>\n'
    )


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
