"""The picture of a resolved spec: its name, the map of its layers, and the graph of every kind of head.

Two specs are drawn beside each other, with what differs between their heads marked.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from string import ascii_uppercase

from blocks.legend import Shape
from composer.drawing.contents import draw_head
from composer.drawing.style import HEADS, element, escape_svg, fit_text, lines_of, style, width
from composer.errors import ComposerError
from composer.graph.composition import HeadSpec
from composer.graph.graph import HeadGraph
from composer.graph.wiring import build_graph
from composer.reporting.words import layers_in_words, plural, size
from composer.spec.dimensions import Dimensions
from composer.spec.explain import COUNTER, state_bytes, state_size
from composer.spec.layer_rules import runs_of
from composer.spec.resolve import Group, Kinds, Resolved, meaning
from composer.system.files import write_whole
from converters.shard import BYTES

A_ROW, MOST = 32, 96
"""Layers in a row of the map, and columns in total. With more layers, a column represents neighbours that are alike."""
LABEL_FONT_SIZE = 11
"""Pixels."""
COLUMN, TALL, NUMBERS, ROW_GAP = 22.0, 46.0, 15.0, 8.0
"""The map of layers: the width and height of a column, the height of the numbers below, and the gap between rows."""


def letters(kinds: Sequence[tuple[str, int]]) -> dict[tuple[str, int], str]:
    """Return a letter for each kind of group, by head and number of its heads; numbers if there are more kinds than letters."""
    few = len(kinds) <= len(ascii_uppercase)
    return {kind: ascii_uppercase[index] if few else str(index + 1) for index, kind in enumerate(kinds)}


def map_of_layers(resolved: Resolved, named: Mapping[tuple[str, int], str], x: float, y: float) -> tuple[list[str], float, float]:
    """Draw the map. Return its SVG elements, width and height."""
    columns = [(str(index), layer) for index, layer in enumerate(resolved.layers)]
    if len(columns) > MOST:
        columns = _runs(resolved.layers)
    omitted_count = len(columns) - MOST
    columns = columns[:MOST]
    places = list(named)
    across = max([COLUMN, *(width(label, LABEL_FONT_SIZE) + 6 for label, _ in columns)])
    elements: list[str] = []
    for index, (label, layer) in enumerate(columns):
        row, column = divmod(index, A_ROW)
        at, top = x + column * across, y + row * (TALL + NUMBERS + ROW_GAP)
        elements += _column(layer, named, places, at, top, across)
        elements.append(
            element(
                "text",
                label,
                class_="cd-said cd-number",
                x=at + across / 2,
                y=top + TALL + 12,
                font_size=LABEL_FONT_SIZE,
                text_anchor="middle",
            )
        )
    rows = (len(columns) + A_ROW - 1) // A_ROW
    height = rows * (TALL + NUMBERS + ROW_GAP) - ROW_GAP
    if omitted_count > 0:
        height += 16
        note = f"and {omitted_count:,} more columns of layers that are alike"
        elements.append(element("text", note, class_="cd-said", x=x, y=y + height - 3, font_size=11))
    return (
        elements,
        max(
            min(len(columns), A_ROW) * across,
            width("and 0,000,000 more columns of layers that are alike", 11) if omitted_count > 0 else 0,
        ),
        height,
    )


def _runs(layers: Sequence[tuple[Group, ...]]) -> list[tuple[str, tuple[Group, ...]]]:
    """Neighbours that are alike, as ``first–last``."""
    spans: list[list[int]] = []
    for index, layer in enumerate(layers):
        if spans and layers[spans[-1][0]] == layer:
            spans[-1][1] = index
        else:
            spans.append([index, index])
    return [(str(first) if first == last else f"{first}–{last}", layers[first]) for first, last in spans]


def _column(
    layer: Sequence[Group],
    named: Mapping[tuple[str, int], str],
    places: Sequence[tuple[str, int]],
    x: float,
    y: float,
    across: float,
) -> list[str]:
    """Return one layer: as much of its height for each group as it has of the heads."""
    total = sum(group.heads for group in layer)
    elements, top = [], y
    for index, key_heads in runs_of(layer):
        group = layer[index]
        kind = (group.head, group.heads)
        high = TALL * key_heads * group.heads / group.key_heads / total
        title = f"{group.heads:,} of {total:,} query heads: {group.head}"
        elements.append(
            element(
                "rect",
                [element("title", escape_svg(title))] if len(layer) > 1 else (),
                class_=f"cd-cell cd-head{places.index(kind) % len(HEADS)}",
                x=x,
                y=top,
                width=across,
                height=high,
            )
        )
        if high >= 11:
            elements.append(
                element(
                    "text",
                    named[kind],
                    class_="cd-letter",
                    x=x + across / 2,
                    y=top + high / 2 + 4,
                    font_size=LABEL_FONT_SIZE,
                    text_anchor="middle",
                )
            )
        top += high
    return elements


TYPICAL = Dimensions(hidden_size=2048, layers=16, heads=32, key_heads=8, head_dim=64, rope_theta=5e5)
TYPICAL_OF = "the sizes of Llama-3.2-1B"
"""The sizes that a spec is drawn on where no source is named, in words."""
MARGIN, PANEL_GAP = 20.0, 28.0
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
    sheet.width, sheet.y = max(sheet.width, wide), sheet.y + high + PANEL_GAP
    _panels(sheet, panels, {kind: _description(named[kind], kind, kinds[kind], several=len(kinds) > 1) for kind in kinds})
    return _finish_picture(sheet, resolved.name)


def _heading(sheet: _Sheet, resolved: Resolved, on: str | None, max_width: float) -> None:
    _text(sheet, fit_text(resolved.name, max_width, 18, bold=True), 18, "name", 22)
    size_ = resolved.dimensions
    heads = f"{size_.heads:,} query and {size_.key_heads:,} key heads of {size_.head_dim:,} numbers"
    heads += "" if size_.value_dim is None else f", values of {size_.value_dim:,}"
    _lines(sheet, [*([f"on {on}"] if on else []), plural(size_.layers, "layer"), heads], max_width)
    _lines(sheet, [resolved.paper] if resolved.paper else [], max_width)


def _figures(
    sheet: _Sheet,
    resolved: Resolved,
    kinds: Kinds,
    graphs: Mapping[tuple[str, int], HeadGraph],
    tokens: int,
    dtype: str,
    max_width: float,
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
    _lines(sheet, [f"of one text, in {dtype}", beside], max_width)
    sheet.y += 8


def _lines(sheet: _Sheet, pieces: list[str], max_width: float) -> None:
    """Write the pieces below a heading, in as many lines as they need."""
    for line in lines_of(pieces, max_width, 12):
        _text(sheet, line, 12, "said", 17)


def _text(sheet: _Sheet, text: str, font: int, name: str, leading: float) -> None:
    sheet.y += leading
    sheet.elements.append(element("text", escape_svg(text), class_=f"cd-{name}", x=MARGIN, y=sheet.y - 5, font_size=font))
    sheet.width = max(sheet.width, width(text, font, bold=name in ("name", "state")))


def _description(letter: str, kind: tuple[str, int], about: tuple[HeadSpec, Shape, list[int]], *, several: bool) -> str:
    name, heads = kind
    layers = _layers_in_words(about[2])
    return f"{letter}: {name}, " + (f"{plural(heads, 'query head')} of {layers}" if several else f"in {layers}")


def _layers_in_words(numbers: Sequence[int]) -> str:
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
            x, sheet.y = 0.0, lowest + PANEL_GAP
        panel_x = MARGIN + x
        sheet.elements.append(
            element("text", escape_svg(title), class_="cd-state cd-panel", x=panel_x, y=sheet.y + 13, font_size=13)
        )
        moved = f"translate({panel_x + (across - wide) / 2:.1f} {sheet.y + 28:.1f})"
        sheet.elements.append(element("g", elements, transform=moved))
        lowest = max(lowest, sheet.y + 28 + high)
        x += across + PANEL_GAP
        sheet.width = max(sheet.width, x - PANEL_GAP)
    sheet.y = lowest


def _finish_picture(sheet: _Sheet, name: str) -> Picture:
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
    wide, high = left.width + PANEL_GAP + right.width, max(left.height, right.height)
    inside = left.svg + right.svg.replace("<svg ", f'<svg x="{left.width + PANEL_GAP:.0f}" ', 1)
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
        other_contents = set(_contents_of(alike[0])) if alike else set()
        marked[kind] = frozenset(name for name, means in _contents_of(graph) if (name, means) not in other_contents)
    return marked


def _contents_of(graph: HeadGraph) -> Iterator[tuple[str, str]]:
    """Yield the name of each part's node, and a text of its meaning and inputs, to compare."""
    for node in graph.parts:
        fed = sorted((edge.start, edge.output, edge.input) for edge in graph.into(node.name))
        content = meaning(node.part) if node.main else getattr(node.part, "weight", None)
        yield node.name, repr((node.kind, content, fed))
