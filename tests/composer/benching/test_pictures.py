"""Pictures show the report: a line per model, a mark per cell, and nothing for cells without memory."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import matplotlib as mpl
import pytest

mpl.use("Agg")

from composer.benching.report import BenchReport, pictures
from composer.runs.store import write_pictures
from tests.composer.benching.made_up import report
from tests.composer.legible import assert_legible

pytestmark = pytest.mark.drawn


def draw(report: BenchReport, folder: Path) -> None:
    write_pictures(partial(pictures, report), folder)


def drawn(axis: Any) -> list[list[list[float]]]:
    return [line.get_xydata().tolist() for line in axis.lines]


def test_pictures_show_the_figures(tmp_path: Path, figures: dict[str, Any]) -> None:
    draw(report(), tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["decode.png", "prefill.png"]
    time, rate, _, rate_of_eight = figures["prefill.png"].axes
    assert drawn(time) == [[[64, 500], [128, 500]], [[64, 250], [128, 250]]]
    assert drawn(rate) == [[[64, 128], [128, 256]], [[64, 256], [128, 512]]]
    assert drawn(rate_of_eight)[0] == [[64, 1024]], "the teacher had no room at 128"
    rate, state, rate_by_batch, state_by_batch = figures["decode.png"].axes
    assert drawn(rate) == [[[2048, 2]], [[2048, 4]]]
    assert drawn(state) == [[[2048, 4096 / 2**20]], [[2048, 512 / 2**20]]]
    assert drawn(rate_by_batch) == [[[1, 2], [8, 16]], [[1, 4], [8, 32]]]
    assert drawn(state_by_batch)[0] == [[1, 4096 / 2**20], [8, 8 * 4096 / 2**20]]
    assert [line.get_label() for line in rate.lines] == ["teacher", "a|b"]
    assert (state.get_ylabel(), rate.get_ylim()[0]) == ("state, MiB", 0)
    for figure in figures.values():
        assert_legible(figure)


def test_peaks_are_drawn_above_the_weights(tmp_path: Path, figures: dict[str, Any]) -> None:
    draw(report(taken=2**20, peak="allocated", batches=(1,)), tmp_path)
    _, memory = figures["decode.png"].axes
    assert drawn(memory) == [[[2048, 1 + 4000 / 2**20]]] * 2
    assert memory.get_ylabel() == "weights and peak, MiB"


def test_reports_without_figures_have_no_picture(tmp_path: Path) -> None:
    whole = report()
    lost = [cell.model_copy(update={"median": None}) for cell in whole.cells if cell.kind == "prefill"]
    draw(BenchReport(setting=whole.setting, cells=tuple(lost)), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_pictures_are_written_as_files(tmp_path: Path) -> None:
    draw(report(), tmp_path)
    assert (tmp_path / "decode.png").read_bytes().startswith(b"\x89PNG")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["decode.png", "prefill.png"]
