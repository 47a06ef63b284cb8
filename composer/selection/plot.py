"""The picture of a selection: each score over the layers, those kept in another colour and hatched."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

from composer.plotting import COLOURS, WIDTH, plotting, save, titled
from composer.selection.report import WORDS, By, Selection
from composer.words import ranges

KEPT, OTHER = COLOURS[5], COLOURS[0]
MOST = 32
"""The most layers that an axis names; of more, it names every second, third and so on."""


def draw(found: Selection, path: Path) -> None:
    """A panel a score. Raises OSError."""
    names = get_args(By)
    with plotting() as pyplot:
        figure, axes = pyplot.subplots(len(names), 1, figsize=(WIDTH, 2.0 * len(names) + 0.6), sharex=True, layout="constrained")
        layers = [one.layer for one in found.scores]
        kept = {layer: layer in found.keep for layer in layers}
        for axis, name in zip(axes, names, strict=True):
            bars = axis.bar(layers, [getattr(one, name) for one in found.scores])
            for layer, bar in zip(layers, bars, strict=True):
                bar.set(facecolor=KEPT if kept[layer] else OTHER, hatch="///" if kept[layer] else None, edgecolor="white")
            axis.axhline(0, color="black", linewidth=0.8)
            axis.set_ylabel(WORDS[name].replace(" by ", "\nby ").replace(" of ", "\nof "))
            if name == found.by:
                axis.set_title(f"kept by this score (hatched): {ranges(found.keep)}", color="#A64500")
        axes[-1].set_xlabel("layer")
        axes[-1].set_xticks(layers[:: -(-len(layers) // MOST)])
        titled(figure, f"What each layer of {Path(found.teacher).name} loses as {found.name}")
        save(figure, path)
