"""The map of layers: a column a layer, and in it its heads, each kind with its letter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from string import ascii_uppercase

from composer.drawing.style import HEADS, element, escape_svg, width
from composer.spec.layer_rules import runs_of
from composer.spec.resolve import Group, Resolved

A_ROW, MOST = 32, 96
"""Layers in a row of the map, and columns in total. With more layers, a column represents neighbours that are alike."""
LETTERS = 11
"""Dots: eight points and a quarter."""
COLUMN, TALL, NUMBERS, BETWEEN = 22.0, 46.0, 15.0, 8.0


def letters(kinds: Sequence[tuple[str, int]]) -> dict[tuple[str, int], str]:
    """Return a letter for each kind of group, by head and number of its heads; numbers if there are more kinds than letters."""
    few = len(kinds) <= len(ascii_uppercase)
    return {kind: ascii_uppercase[index] if few else str(index + 1) for index, kind in enumerate(kinds)}


def map_of_layers(resolved: Resolved, named: Mapping[tuple[str, int], str], x: float, y: float) -> tuple[list[str], float, float]:
    """Elements, width, height."""
    columns = [(str(index), layer) for index, layer in enumerate(resolved.layers)]
    if len(columns) > MOST:
        columns = _runs(resolved.layers)
    left = len(columns) - MOST
    columns = columns[:MOST]
    places = list(named)
    across = max([COLUMN, *(width(label, LETTERS) + 6 for label, _ in columns)])
    elements: list[str] = []
    for index, (label, layer) in enumerate(columns):
        row, column = divmod(index, A_ROW)
        at, top = x + column * across, y + row * (TALL + NUMBERS + BETWEEN)
        elements += _column(layer, named, places, at, top, across)
        elements.append(
            element(
                "text",
                label,
                class_="cd-said cd-number",
                x=at + across / 2,
                y=top + TALL + 12,
                font_size=LETTERS,
                text_anchor="middle",
            )
        )
    rows = (len(columns) + A_ROW - 1) // A_ROW
    height = rows * (TALL + NUMBERS + BETWEEN) - BETWEEN
    if left > 0:
        height += 16
        note = f"and {left:,} more columns of layers that are alike"
        elements.append(element("text", note, class_="cd-said", x=x, y=y + height - 3, font_size=11))
    return (
        elements,
        max(min(len(columns), A_ROW) * across, width("and 0,000,000 more columns of layers that are alike", 11) if left > 0 else 0),
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
                    font_size=LETTERS,
                    text_anchor="middle",
                )
            )
        top += high
    return elements
