"""The picture of a selection has a bar per layer and score, and kept layers differ by more than colour."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest

from composer.selection.report import LayerBy, LayerScore, Selection, draw_layers
from tests.composer.legible import assert_legible, kept_open


@pytest.mark.parametrize("layers", [2, 80])
def test_the_picture_has_a_bar_per_layer_and_marks_kept_layers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layers: int
) -> None:
    figures = kept_open(monkeypatch)
    scores = tuple(LayerScore(layer=index, restored=index - 0.5, swapped=-0.1 * index, error=0.3) for index in range(layers))
    selection = Selection.model_construct(
        name="near-far", teacher="here/teacher", by="restored", keep=(1,), scores=scores, out=tmp_path
    )
    draw_layers(selection, tmp_path / "layers.png")
    figure = figures["layers.png"]
    assert_legible(figure)
    assert len(figure.axes) == len(get_args(LayerBy))
    for axis, name in zip(figure.axes, get_args(LayerBy), strict=True):
        bars = axis.patches
        assert [bar.get_height() for bar in bars] == [getattr(score, name) for score in scores]
        assert [place for place, bar in enumerate(bars) if bar.get_hatch()] == [1]
