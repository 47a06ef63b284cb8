"""Pictures of an ablation show its report: the teacher as a line, a square per pair, a point per variant."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import matplotlib as mpl
import pytest

mpl.use("Agg")

from composer.ablation.pictures import draw_all, grid_of
from composer.ablation.report import AblationReport, Column, Figure, VariantReport
from tests.composer.legible import assert_legible

PLOT, GRID, STATE = "plot.png", "grid.png", "state.png"

COLUMNS = (Column(kind="after"), Column(kind="score", task="recall", length=64))
SIZES, MAPS = (8, 16, 32), ("elu", "relu")


def variant(size: Any, feature_map: str, **more: Any) -> VariantReport:
    figures = {"perplexity": Figure(mean=100 / size, spread=None, values={}), "recall 64": Figure(mean=0.25, spread=0.1, values={})}
    fields: dict[str, Any] = {
        "name": f"x-{size}-{feature_map}",
        "values": {"head.memory.0.size": size, "head.feature_map": feature_map},
        "spec": {},
        "spec_hash": None,
        "trained": (),
        "figures": figures,
        "teacher_perplexity": 2.0,
        "failures": {},
        "seconds": 1.0,
        "state_bytes": size * 1024 if isinstance(size, int) else 0,
        "kv_cache_bytes": 65536,
    }
    return VariantReport(**(fields | more))


def report(*variants: VariantReport) -> AblationReport:
    chosen = variants or tuple(variant(*pair) for pair in itertools.product(SIZES, MAPS))
    return AblationReport(request={}, columns=COLUMNS, variants=chosen, versions={}, state_length=64)


@pytest.mark.parametrize("count", [3, 7])
def test_all_pictures_are_legible(tmp_path: Path, figures: dict[str, Any], count: int) -> None:
    sizes = [8 * 2**place for place in range(count)]
    draw_all(report(*(variant(*pair) for pair in itertools.product(sizes, ("elu", "relu", "hedgehog")))), tmp_path)
    assert set(figures) == {GRID, PLOT, STATE}
    for figure in figures.values():
        assert_legible(figure)


def test_spreads_of_shares_are_between_0_and_1(tmp_path: Path, figures: dict[str, Any]) -> None:
    wide = {"recall 64": Figure(mean=0.9, spread=0.4, values={})}
    draw_all(report(variant(8, "elu", figures=wide), variant(16, "elu", figures=wide)), tmp_path)
    for name, place in ((PLOT, 0), (STATE, 1)):
        (segment, *_) = figures[name].axes[1].collections[0].get_segments()
        assert segment[:, place].tolist() == pytest.approx([0.5, 1.0])


def test_a_two_way_grid_is_a_heat_map(tmp_path: Path, figures: dict[str, Any]) -> None:
    draw_all(report(), tmp_path)
    first, second, *_ = figures[GRID].axes
    assert first.images[0].get_array().tolist() == [[100 / size] * 2 for size in SIZES]
    assert [label.get_text() for label in first.get_yticklabels()] == ["8", "16", "32"]
    assert [label.get_text() for label in first.get_xticklabels()] == ["elu", "relu"]
    assert (first.get_ylabel(), first.get_xlabel()) == ("head.memory.0.size", "head.feature_map")
    assert first.get_title("left") == "perplexity (teacher 2)"
    assert second.images[0].get_clim() == (0, 1)
    assert [text.get_text() for text in second.texts] == ["0.25 ± 0.1"] * 6


@pytest.mark.parametrize(
    "variants",
    [
        tuple(variant(*pair) for pair in itertools.product(SIZES, MAPS))[:-1],
        tuple(variant(size, "elu") for size in SIZES),
        (variant(8, "elu", values={"a": 1}), variant(8, "relu", values={"a": 2})),
        (variant(8, "elu"), variant(8, "relu", values={})),
    ],
)
def test_variants_without_a_grid_have_no_heat_map(tmp_path: Path, variants: tuple[VariantReport, ...]) -> None:
    """If the variants form no grid, the picture of an earlier call is removed."""
    (tmp_path / GRID).write_text("of before")
    assert grid_of(report(*variants)) is None
    draw_all(report(*variants), tmp_path)
    assert (tmp_path / PLOT).is_file()
    assert not (tmp_path / GRID).exists()


def test_the_teacher_is_a_line(tmp_path: Path, figures: dict[str, Any]) -> None:
    draw_all(report(), tmp_path)
    perplexity, recall = figures[PLOT].axes
    lines = [line for line in perplexity.lines if line.get_label() == "teacher, 2"]
    assert [set(line.get_xdata()) for line in lines] == [{2.0}]
    assert not [line for line in recall.lines if str(line.get_label()).startswith("teacher")]
    scored = report().model_copy(update={"teacher": {"recall 64": 0.75}})
    draw_all(scored, tmp_path)
    (line,) = [line for line in figures[PLOT].axes[1].lines if line.get_label() == "teacher, 0.75"]
    assert set(line.get_xdata()) == {0.75}
    (line,) = [line for line in figures[STATE].axes[1].lines if line.get_label() == "teacher, 0.75"]
    assert set(line.get_ydata()) == {0.75}
    assert "recall 64, share right (teacher 0.75)" in [axis.get_title(loc="left") for axis in figures[GRID].axes]
    draw_all(report(variant(8, "elu"), variant(16, "elu", teacher_perplexity=3.0)), tmp_path)
    assert not [line for line in figures[PLOT].axes[0].lines if str(line.get_label()).startswith("teacher")]


def test_each_variant_is_a_point_of_quality_over_state_size(tmp_path: Path, figures: dict[str, Any]) -> None:
    draw_all(report(), tmp_path)
    axis, recall = figures[STATE].axes
    points = {bars.get_label(): bars.lines[0].get_xydata().tolist() for bars in axis.containers}
    assert points == {f"x-{size}-{name}": [[size, 100 / size]] for size in SIZES for name in MAPS}
    assert len({(bars.lines[0].get_color(), bars.lines[0].get_marker()) for bars in axis.containers}) == 6
    lines = {line.get_label(): line for line in axis.lines}
    assert set(lines["softmax attention's cache"].get_xdata()) == {64.0}
    assert set(lines["teacher, 2"].get_ydata()) == {2.0}
    assert axis.get_xlabel() == "state of one text at 64 tokens, KiB"
    assert recall.get_ylim() == (-0.05, 1.05)


def test_equal_states_have_no_picture(tmp_path: Path) -> None:
    draw_all(report(variant(8, "elu"), variant(8, "relu")), tmp_path)
    assert not (tmp_path / STATE).exists()


def test_reports_without_models_and_states_are_read() -> None:
    """A report without models and states can be read."""
    report_data = report().model_dump(mode="json")
    del report_data["state_length"]
    for variant_data in report_data["variants"]:
        for key in ("models", "state_bytes", "kv_cache_bytes"):
            del variant_data[key]
    before = AblationReport.model_validate(report_data)
    assert (before.state_length, before.variants[0].models, before.variants[0].state_bytes) == (None, {}, None)
