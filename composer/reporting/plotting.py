"""Pictures by matplotlib, on no screen: one look for all of them, legible at the width of a README and for all eyes."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import chdir, contextmanager, nullcontext
from pathlib import Path
from typing import Any

from composer.reporting.escape import mask
from composer.system.files import whole_file

COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#000000")
"""Okabe and Ito's colours, which colour-blind readers can distinguish, without their yellow, which has little contrast on white."""
TEACHER, STUDENT, MARK, FAINT = "#000000", COLOURS[0], COLOURS[5], "#767676"
MAP = "cividis"
"""The colour map of heat maps: from dark to light, for all eyes."""
MARKERS = "os^Dv*P"
LINES: tuple[Any, ...] = ("-", "--", ":", "-.", (0, (3, 1, 1, 1, 1, 1)))
WIDTH = 8.8
"""Inches at most: a README shows as many at 102 dots each, so that its letters are hardly smaller than those of a picture."""
RESOLUTION = 120
"""Dots an inch."""
STYLE: Any = {
    "font.size": 9,
    "axes.titlesize": 9,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "figure.facecolor": "white",
    "figure.titlesize": 10,
    "figure.constrained_layout.h_pad": 0.08,
    "figure.constrained_layout.w_pad": 0.08,
    "savefig.facecolor": "white",
    "axes.grid": False,
    "legend.frameon": False,
    "legend.fontsize": 8,
    "lines.linewidth": 1.4,
}


def offscreen() -> Any:
    """Return matplotlib's pyplot. Its import needs a second.

    The import reads the file ``matplotlibrc`` of the current folder, and fails if that is damaged.
    """
    hides_settings = "matplotlib" not in sys.modules and os.path.lexists("matplotlibrc")
    with chdir(Path(__file__).parent) if hides_settings else nullcontext():
        import matplotlib as mpl

        mpl.use("Agg")
        from matplotlib import pyplot

    return pyplot


@contextmanager
def plotting() -> Iterator[Any]:
    """matplotlib's pyplot, in this style alone: settings of users' files do not count."""
    pyplot = offscreen()
    with pyplot.rc_context():
        pyplot.rcdefaults()
        pyplot.rcParams.update(STYLE)
        yield pyplot


def colour(index: int) -> str:
    return COLOURS[index % len(COLOURS)]


def line(index: int) -> Any:
    """Return the style of a line: dashes distinguish lines if there are more of them than colours."""
    return LINES[index // len(COLOURS) % len(LINES)]


def marker(index: int) -> str:
    """Return the marker of a line. Lines with equal colours have different markers."""
    return MARKERS[(index + index // len(COLOURS)) % len(MARKERS)]


def look(index: int, name: str) -> dict[str, Any]:
    """Return the colour, the style, the marker and the label of the line of ``name``."""
    return {"color": colour(index), "linestyle": line(index), "marker": marker(index), "label": label(name)}


def panels(pyplot: Any, count: int, *, height: float, across: int = 1, margin: float = 0.8, **shared: Any) -> tuple[Any, list[Any]]:
    """Return a figure and ``count`` panels of it, at most ``across`` side by side. height: of a row, in inches."""
    across = max(1, min(across, count))
    down = -(-count // across)
    figure, axes = pyplot.subplots(
        down, across, figsize=(WIDTH, height * down + margin), squeeze=False, layout="constrained", **shared
    )
    for axis in axes.flat[count:]:
        axis.set_visible(False)
    return figure, list(axes.flat[:count])


def plain(name: str) -> str:
    """Return a name as text of a picture, whose dollar signs begin no formula."""
    return mask(name).replace("$", r"\$")


def label(name: str) -> str:
    """Return a name as the label of a line: matplotlib leaves labels that begin with an underscore out of legends."""
    return plain(f" {name}" if name.startswith("_") else name)


def add_title(figure: Any, text: str) -> None:
    """Put a title above all panels, aligned on the left."""
    figure.suptitle(plain(text), x=0.012, ha="left")


def legend(figure: Any, *axes: Any, columns: int = 8) -> None:
    """A legend for all these panels, below them, with each label once."""
    handles = {label: handle for axis in axes for handle, label in zip(*axis.get_legend_handles_labels(), strict=True)}
    if handles:
        across = min(columns, len(handles))
        figure.legend(list(handles.values()), list(handles), loc="outside lower center", ncols=across)


def named_ticks(axis: Any, names: Sequence[str], *, upright: int, limit: int) -> None:
    """Label the x axis with names, one per place: vertical if there are more than ``upright``, and only some of them beyond
    ``limit``."""
    every = -(-len(names) // limit)
    axis.set_xticks(range(0, len(names), every), names[::every], rotation=90 if len(names) > upright else 0)


def doubling_ticks(axis: Any, numbers: Sequence[int], *, upright: int = 100) -> None:
    """Make the x axis logarithmic to base 2, with ticks at these numbers only: vertical if there are more than ``upright``."""
    axis.set_xscale("log", base=2)
    axis.set_xticks(numbers, [f"{number:,}" for number in numbers], rotation=90 if len(numbers) > upright else 0)
    axis.minorticks_off()


def whole_ticks(axis: Any, *, limit: int = 8) -> None:
    """Ticks of the x axis at whole numbers alone."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    axis.xaxis.set_major_locator(MaxNLocator(limit, integer=True, min_n_ticks=1, steps=[1, 2, 5, 10]))
    axis.xaxis.set_major_formatter(FuncFormatter(lambda number, _: f"{number:,.0f}"))


def by_powers(axis: Any, *, max_decades: float = 1) -> None:
    """Make the y axis logarithmic, with numbers written out; those between powers only if there is room. Without a number above 0
    the axis does not change."""
    from matplotlib.ticker import FuncFormatter

    if axis.dataLim.ymax <= 0:
        return

    axis.set_yscale("log")
    axis.yaxis.set_major_formatter(FuncFormatter(lambda number, _: f"{number:,.10g}"))
    axis.yaxis.set_minor_formatter(plain_minor(max_decades))


def plain_minor(max_decades: float = 1, full_decades: float = 0.4) -> Any:
    """Labels of a logarithmic axis between its powers of ten, as plain digits: 0.55 and not 6e-01.

    max_decades, full_decades: as matplotlib's ``minor_thresholds``: no labels over more decades than ``max_decades``, all of them
    over fewer than ``full_decades``.
    """
    from matplotlib.ticker import LogFormatter

    class Plain(LogFormatter):
        """Chooses the ticks that have room for a label; the label is the number."""

        def __call__(self, x: float, pos: Any = None) -> str:
            return f"{x:,.6g}" if super().__call__(x, pos) else ""

    return Plain(minor_thresholds=(max_decades, full_decades))


def within_shares(mean: float, spread: float) -> tuple[float, float]:
    """Return the lengths of the error bar of a share, down and up, which ends at 0 and at 1."""
    return max(0.0, min(spread, mean)), max(0.0, min(spread, 1 - mean))


def save(figure: Any, target: Path) -> None:
    """Writes a figure of pyplot's as PNG, whole or not at all, and closes it. Raises OSError."""
    with whole_file(target) as partial:
        figure.savefig(partial, dpi=RESOLUTION, format="png", facecolor="white")
    offscreen().close(figure)
