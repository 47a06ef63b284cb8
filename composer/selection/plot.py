"""The picture of a selection: each score over the layers, those kept in another colour."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

from composer.files import whole
from composer.selection.report import WORDS, By, Selection
from composer.words import ranges

KEPT, OTHER = "#d55e00", "#0072b2"
"""Vermilion and blue of Okabe and Ito, which the colour-blind can tell."""


def draw(found: Selection, path: Path) -> None:
    """A panel a score. Raises OSError."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    names = get_args(By)
    figure, axes = pyplot.subplots(len(names), 1, figsize=(8, 2.2 * len(names)), sharex=True, layout="constrained")
    layers = [one.layer for one in found.scores]
    for axis, name in zip(axes, names, strict=True):
        heights = [getattr(one, name) for one in found.scores]
        axis.bar(layers, heights, color=[KEPT if layer in found.keep else OTHER for layer in layers])
        axis.axhline(0, color="black", linewidth=0.8)
        axis.set_ylabel(WORDS[name].replace(" by ", "\nby ").replace(" of ", "\nof "), fontsize="small")
        if name == found.by:
            axis.set_title(f"kept by this score: {ranges(found.keep)}", fontsize="small", color=KEPT)
    axes[-1].set_xlabel("layer")
    axes[-1].xaxis.get_major_locator().set_params(integer=True)
    figure.suptitle(f"{found.name} of {Path(found.teacher).name}", fontsize="medium")
    with whole(path) as partial:
        figure.savefig(partial, dpi=120, format="png")
    pyplot.close(figure)
