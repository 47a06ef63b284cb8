"""Pictures by matplotlib, on no screen."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from composer.files import whole

COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#000000")
"""Okabe and Ito's, which all eyes tell apart."""
RESOLUTION = 120
"""Dots an inch."""


def offscreen() -> Any:
    """matplotlib's pyplot; importing it takes a second."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    return pyplot


def plain_minor(most: float = 1, few: float = 0.4) -> Any:
    """Labels of a logarithmic axis between its powers of ten, in digits of their own: 0.55 and not 6e-01.

    most, few: as matplotlib's ``minor_thresholds``: no labels over more decades than ``most``, all of them over fewer than ``few``.
    """
    from matplotlib.ticker import LogFormatter

    class Plain(LogFormatter):
        """Says which ticks have room for a label; the label is the number."""

        def __call__(self, x: float, pos: Any = None) -> str:
            return f"{x:,.6g}" if super().__call__(x, pos) else ""

    return Plain(minor_thresholds=(most, few))


def save(figure: Any, target: Path) -> None:
    """Writes a figure of pyplot's as PNG, whole or not at all, and closes it. Raises OSError."""
    with whole(target) as partial:
        figure.savefig(partial, dpi=RESOLUTION, format="png", facecolor="white")
    offscreen().close(figure)
