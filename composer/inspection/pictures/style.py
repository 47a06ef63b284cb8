"""What all pictures share: colours that the colour-blind can tell, sizes for the width of a page, and panels side by side."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from composer.inspection.findings import Numbers

COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#000000")
"""Okabe & Ito's."""
TEACHER, STUDENT, MARK = "#000000", "#0072B2", "#D55E00"
MAP = "cividis"
STYLE: Any = {
    "font.size": 9,
    "axes.titlesize": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "figure.facecolor": "white",
    "savefig.facecolor": "white",
    "axes.grid": False,
    "legend.frameon": False,
    "legend.fontsize": 8,
    "lines.linewidth": 1.4,
}
WIDTH, ACROSS = 8.8, 4
LINES = ("-", "--", ":", "-.")


@contextmanager
def plotting() -> Iterator[Any]:
    """matplotlib's pyplot, drawing on no screen, in this style."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    with mpl.rc_context(STYLE):
        yield pyplot


def panels(pyplot: Any, count: int, *, height: float = 2.2, across: int = ACROSS, **shared: Any) -> tuple[Any, list[Any]]:
    """A figure and its panels, so many side by side at most."""
    across = max(1, min(across, count))
    down = -(-count // across)
    figure, axes = pyplot.subplots(
        down, across, figsize=(WIDTH, height * down + 0.5), squeeze=False, layout="constrained", **shared
    )
    flat = list(axes.flat)
    for axis in flat[count:]:
        axis.set_visible(False)
    return figure, flat[:count]


def colour(index: int) -> str:
    return COLOURS[index % len(COLOURS)]


def line(index: int) -> str:
    """Beyond as many lines as there are colours, dashes tell them apart."""
    return LINES[index // len(COLOURS) % len(LINES)]


def legend(figure: Any, axis: Any, *, most: int = 16) -> None:
    """One for all panels, below them."""
    handles, labels = axis.get_legend_handles_labels()
    if handles:
        figure.legend(handles[:most], labels[:most], loc="outside lower center", ncols=min(8, len(handles)))


def ticks(axis: Any, queries: Sequence[int], *, count: int = 5) -> None:
    """Rows of queries, named by their columns."""
    rows = np.unique(np.linspace(0, len(queries) - 1, count).round().astype(int))
    axis.set_yticks(rows + 0.5, [f"{queries[row]:,}" for row in rows])


def finite(numbers: Numbers) -> Numbers:
    return np.where(np.isfinite(numbers), numbers, np.nan)
