"""Common parts of the pictures of an inspection: a colour for each memory, and rows of queries."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from blocks.memories import MEMORIES
from composer.inspection.findings import Findings, PlainArray
from composer.reporting.plotting import COLOURS, FAINT


@dataclass(frozen=True)
class DrawnFigure:
    """name: of its files. title, says: above and below it on the page. data: the contents of its JSON."""

    name: str
    title: str
    says: str
    figure: Any
    data: Any


OF_MEMORIES = tuple(COLOURS[index] for index in (3, 4, 6, 0, 1, 2, 5))
"""In the order of the catalogue, so that a kind has the same colour in every picture, of whatever model."""


def memory_colours(findings: Findings) -> dict[str, str]:
    """Return the colour of each memory by its name; grey for others, such as attention sinks. If two memories of a model would have
    the same colour, the second has the next free one."""
    order = list(MEMORIES)
    kinds = dict(pair for head in findings.heads for pair in zip(head.memories, head.kinds, strict=True))
    colours: dict[str, str] = {}
    for name, kind in sorted(kinds.items(), key=lambda item: (order.index(item[1]), item[0])):
        place = order.index(kind)
        rotated = [OF_MEMORIES[(place + step) % len(OF_MEMORIES)] for step in range(len(OF_MEMORIES))]
        colours[name] = next((colour for colour in rotated if colour not in colours.values()), rotated[0])
    others = dict.fromkeys(name for head in findings.heads for name in head.shares if name not in colours)
    return colours | dict.fromkeys(others, FAINT)


def from_zero(axes: Iterable[Any]) -> None:
    """Once all is drawn: panels that share an axis have room for the largest of all."""
    for axis in axes:
        axis.set_ylim(bottom=0)


def ticks(axis: Any, queries: Sequence[int], *, count: int = 5) -> None:
    """Rows of queries, named by their columns."""
    rows = np.unique(np.linspace(0, len(queries) - 1, count).round().astype(int))
    axis.set_yticks(rows + 0.5, [f"{queries[row]:,}" for row in rows])


def finite(numbers: PlainArray) -> PlainArray:
    return np.where(np.isfinite(numbers), numbers, np.nan)
