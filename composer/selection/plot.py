"""The picture of a selection: each score over the layers, those kept in another colour."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

from composer.plotting import COLOURS, offscreen, save
from composer.selection.report import WORDS, By, Selection
from composer.words import ranges

KEPT, OTHER = COLOURS[5], COLOURS[0]


def draw(found: Selection, path: Path) -> None:
    """A panel a score. Raises OSError."""
    pyplot = offscreen()
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
    save(figure, path)
