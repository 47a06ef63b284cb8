"""The legibility of a figure: its drawn text, text sizes at the width of a README, and names of axes."""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from typing import Any

import pytest
from matplotlib import rc_context
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.transforms import Bbox

from composer.reporting.plotting import STYLE, WIDTH, offscreen

README = 900 / 96
"""Inches that a README shows a picture at."""
POINTS = 8
SLACK = 1.0
"""Dots by which the outlines of letters may touch."""
NUMBER = re.compile(r"[-\N{MINUS SIGN}]?[\d.,]+(e[-+]?\d+)?( %)?")


def kept_open(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Collect figures by the names of their files, and write empty files."""
    kept: dict[str, Any] = {}
    offscreen().close("all")  # of tests before

    def savefig(figure: Any, path: Path, **_: Any) -> None:
        kept[path.name.removeprefix(".").removesuffix(".partial")] = figure
        path.touch()

    monkeypatch.setattr(Figure, "savefig", savefig)
    monkeypatch.setattr(offscreen(), "close", lambda _: None)
    return kept


def words_of(figure: Any) -> list[tuple[str, float, Bbox]]:
    """Return each drawn text, its size in points, and its outline in dots."""
    words: list[tuple[str, float, Bbox]] = []
    drawn = Text.draw

    def draw(self: Text, renderer: Any, *more: Any, **named: Any) -> None:
        if self.get_visible() and self.get_text().strip():
            words.append((self.get_text(), float(self.get_fontsize()), self.get_window_extent(renderer)))
        drawn(self, renderer, *more, **named)

    Text.draw = draw
    try:
        with rc_context(STYLE):
            figure.draw_without_rendering()
    finally:
        Text.draw = drawn
    return words


def _apart(first: Bbox, other: Bbox) -> bool:
    across = min(first.x1, other.x1) - max(first.x0, other.x0)
    return across <= SLACK or min(first.y1, other.y1) - max(first.y0, other.y0) <= SLACK


def _named(axis: Any) -> bool:
    """Return whether an axis has a label, or words as ticks."""
    ticks = [tick.get_text() for tick in axis.get_ticklabels() if tick.get_text()]
    return bool(axis.get_label_text()) or any(NUMBER.fullmatch(tick) is None for tick in ticks)


def assert_legible(figure: Any) -> None:
    """Check that the figure is no wider than a README, letters have eight points there, no words overlap or leave the page, and
    the title and each axis, possibly a shared one, have a name.
    """
    wide, high = figure.get_size_inches() * figure.dpi
    assert figure.get_size_inches()[0] <= WIDTH, "wider than a README"
    words = words_of(figure)
    assert words, "nothing is drawn: the figure is closed"
    for text, size, box in words:
        assert size * README / figure.get_size_inches()[0] >= POINTS, f"{text!r} is small"
        assert box.x0 >= -SLACK <= box.y0, f"{text!r} leaves the picture"
        assert box.x1 <= wide + SLACK, f"{text!r} leaves the picture"
        assert box.y1 <= high + SLACK, f"{text!r} leaves the picture"
    for (text, _, box), (other, _, its) in itertools.combinations(words, 2):
        assert _apart(box, its), f"{text!r} meets {other!r}"
    assert figure.get_suptitle(), "no title"
    unnamed = "an axis has no name"
    shown = [axes for axes in figure.axes if axes.get_visible() and axes.axison]
    assert shown
    for axes in shown:
        if hasattr(axes, "_colorbar"):
            assert axes.get_xlabel() or axes.get_ylabel(), unnamed
            continue
        assert any(_named(sibling.xaxis) for sibling in axes.get_shared_x_axes().get_siblings(axes)), unnamed
        assert any(_named(sibling.yaxis) for sibling in axes.get_shared_y_axes().get_siblings(axes)), unnamed
