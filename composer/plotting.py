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


def save(figure: Any, target: Path) -> None:
    """Writes a figure of pyplot's as PNG, whole or not at all, and closes it. Raises OSError."""
    with whole(target) as partial:
        figure.savefig(partial, dpi=RESOLUTION, format="png", facecolor="white")
    offscreen().close(figure)
