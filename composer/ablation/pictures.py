"""The report of an ablation in pictures: bars for each figure, a heat map where two things vary, and quality over memory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from composer.ablation.report import AblationReport, Column, Figure, VariantReport
from composer.ablation.table import cut, figure_text, number, value_in_a_line
from composer.plotting import MAP, TEACHER, WIDTH, colour, marker, plotting, save, titled, within_shares

PLOT, GRID, STATE = "plot.png", "grid.png", "state.png"
ROOM = 0.75
"""Inches that a figure and its spread need in a square of a heat map; in narrower ones the figure stands alone."""
UNITS = {
    "before": "perplexity",
    "after": "perplexity",
    "perplexity": "perplexity",
    "mse": "mean squared error",
    "divergence": "nats",
    "score": "share right",
}
LOG_FROM = 20
"""An axis is logarithmic if its largest figure is more than this many times its smallest."""


def draw_all(report: AblationReport, folder: Path) -> None:
    """Writes each picture that the report has data for, whole or not at all, and removes other pictures of earlier calls. Raises
    OSError."""
    draw(report, folder / PLOT)
    for name, picture in ((GRID, _grid), (STATE, _over_state)):
        if not picture(report, folder / name):
            (folder / name).unlink(missing_ok=True)


def draw(report: AblationReport, target: Path) -> None:
    """Each column as a row of bars, a variant each, with its spread, and the teacher as a line. Draws nothing without figures."""
    if not report.columns:
        return
    names = [variant.name for variant in report.variants]
    height = 0.6 + 0.3 * len(names)
    with plotting() as pyplot:
        figure, axes = pyplot.subplots(
            len(report.columns), 1, figsize=(WIDTH, height * len(report.columns) + 0.4), squeeze=False, layout="constrained"
        )
        for axis, column in zip(axes[:, 0], report.columns, strict=True):
            _bars(axis, report, column, names)
        titled(figure, "What the variants reach")
        save(figure, target)


def _bars(axis: Any, report: AblationReport, column: Column, names: list[str]) -> None:
    found = [variant.figures.get(column.title) for variant in report.variants]
    means = [0.0 if one is None else one.mean for one in found]
    axis.barh(names, means, xerr=list(zip(*(_spread(column, one) for one in found), strict=True)), color=colour(0), alpha=0.8)
    axis.bar_label(axis.containers[-1], [figure_text(one) for one in found], padding=3, fontsize=8)
    axis.set_title(_titled(column))
    axis.invert_yaxis()
    axis.margins(x=0.2)
    teacher = teacher_on(report, column)
    if teacher is not None:
        axis.axvline(teacher, color=TEACHER, linestyle="--", label=f"teacher, {number(teacher)}")
        axis.legend(loc="lower right", bbox_to_anchor=(1, 1), borderaxespad=0)
    if column.kind == "score":
        axis.set_xlim(0, 1.25)
        axis.set_xticks([0, 0.2, 0.4, 0.6, 0.8, 1])
    elif min((one.mean for one in found if one is not None), default=1.0) * LOG_FROM < max(means):
        axis.set_xscale("log")
    axis.set_xlabel(_unit(column))


def _spread(column: Column, one: Figure | None) -> tuple[float, float]:
    """The lengths of the error bar of a figure, down and up."""
    if one is None or one.spread is None:
        return 0.0, 0.0
    return within_shares(one.mean, one.spread) if column.kind == "score" else (one.spread, one.spread)


def teacher_on(report: AblationReport, column: Column) -> float | None:
    """The teacher's own figure in a column; None where it has none, or where variants had other rows held out."""
    known = {variant.teacher_perplexity for variant in report.variants}
    if column.kind in ("before", "after"):
        return next(iter(known)) if len(known) == 1 else None
    return report.teacher.get(column.title)


def grid_of(report: AblationReport) -> tuple[tuple[str, str], list[str], list[str], dict[tuple[str, str], VariantReport]] | None:
    """The two paths that the variants differ at, the values of each, and the variant of each pair; None where they are no grid."""
    paths = {tuple(variant.values) for variant in report.variants}
    if len(paths) != 1 or len(one := next(iter(paths))) != 2:
        return None
    placed = {tuple(json.dumps(variant.values[path]) for path in one): variant for variant in report.variants}
    first, second = (list(dict.fromkeys(pair[side] for pair in placed)) for side in (0, 1))
    if min(len(first), len(second)) < 2 or len(placed) != len(first) * len(second) or len(placed) != len(report.variants):
        return None
    return (one[0], one[1]), first, second, {(pair[0], pair[1]): variant for pair, variant in placed.items()}


def _grid(report: AblationReport, target: Path) -> bool:
    """A heat map of each column. Returns whether the variants are a grid."""
    grid = grid_of(report)
    if grid is None or not report.columns:
        return False
    import numpy as np

    (down, across), first, second, variants = grid
    count = len(report.columns)
    side_by_side = 2 if count > 1 and len(second) <= 3 else 1
    rows = -(-count // side_by_side)
    roomy = (WIDTH / side_by_side - 2) / len(second) > ROOM
    with plotting() as pyplot:
        size = (WIDTH, max(2.4, 0.4 * len(first) + 1.5) * rows + 0.4)
        figure, axes = pyplot.subplots(rows, side_by_side, figsize=size, squeeze=False, layout="constrained")
        for axis in axes.flat[count:]:
            axis.set_axis_off()
        for axis, column in zip(axes.flat, report.columns, strict=False):
            found = [[variants[row, cell].figures.get(column.title) for cell in second] for row in first]
            means = np.array([[np.nan if one is None else one.mean for one in row] for row in found])
            positive = means[np.isfinite(means)]
            log = column.kind != "score" and positive.size > 0 and positive.min() > 0 and positive.max() > LOG_FROM * positive.min()
            colours = pyplot.matplotlib.colors
            norm = colours.LogNorm() if log else colours.Normalize(0, 1) if column.kind == "score" else None
            image = axis.imshow(means, cmap=MAP, norm=norm, aspect="auto")
            for row, figures in enumerate(found):
                for cell, one in enumerate(figures):
                    ink = "white" if one is not None and image.norm(means[row, cell]) < 0.5 else "black"
                    words = figure_text(one) if roomy or one is None else number(one.mean)
                    axis.text(cell, row, words, ha="center", va="center", color=ink, fontsize=8)
            axis.set_xticks(range(len(second)), [_label(value) for value in second], rotation=0 if roomy else 90)
            axis.set_yticks(range(len(first)), [_label(value) for value in first])
            axis.set(xlabel=across, ylabel=down)
            teacher = teacher_on(report, column)
            axis.set_title(_titled(column) + ("" if teacher is None else f" (teacher {number(teacher)})"))
            figure.colorbar(image, ax=axis, label=_unit(column))
        titled(figure, f"{_last(down)} and {_last(across)} in every combination")
        save(figure, target)
    return True


def _over_state(report: AblationReport, target: Path) -> bool:
    """Each column over the bytes of a row's state, a point a variant, with the teacher's cache as a line. Returns whether the
    variants' states differ: otherwise there is no picture."""
    sizes = {variant.state_bytes for variant in report.variants if variant.state_bytes}
    columns = [column for column in report.columns if column.kind not in ("mse", "divergence", "before")]
    if len(sizes) < 2 or not columns:
        return False
    height = max(3.2, 0.25 * len(report.variants) + 1)
    with plotting() as pyplot:
        figure, axes = pyplot.subplots(
            len(columns), 1, figsize=(WIDTH, height * len(columns) + 0.4), squeeze=False, layout="constrained"
        )
        for axis, column in zip(axes[:, 0], columns, strict=True):
            _points(axis, report, column)
        titled(figure, "What the variants reach, over what their states take")
        save(figure, target)
    return True


def _points(axis: Any, report: AblationReport, column: Column) -> None:
    for place, variant in enumerate(report.variants):
        one = variant.figures.get(column.title)
        if one is None or not variant.state_bytes:
            continue
        look = {"color": colour(place), "marker": marker(place), "linestyle": "none", "label": variant.name}
        spread = {} if one.spread is None else {"yerr": [[end] for end in _spread(column, one)], "capsize": 3}
        axis.errorbar(variant.state_bytes / 1024, one.mean, **look, **spread)
    caches = {variant.kv_cache_bytes for variant in report.variants if variant.kv_cache_bytes}
    teacher = teacher_on(report, column)
    if len(caches) == 1:
        axis.axvline(next(iter(caches)) / 1024, color=TEACHER, linestyle=":", label="softmax attention's cache")
    if teacher is not None:
        axis.axhline(teacher, color=TEACHER, linestyle="--", label=f"teacher, {number(teacher)}")
    axis.legend(loc="upper left", bbox_to_anchor=(1.01, 1), borderaxespad=0)
    if column.kind == "score":
        axis.set_ylim(-0.05, 1.05)
    length = f" at {report.state_length:,} tokens" if report.state_length else ""
    axis.set_xscale("log", base=2)
    axis.xaxis.set_major_formatter(lambda size, _: f"{size:g}")
    axis.margins(x=0.2)
    axis.set(xlabel=f"state of one text{length}, KiB", ylabel=_unit(column))
    axis.set_title(_titled(column))


def _unit(column: Column) -> str:
    return UNITS[column.kind]


def _last(path: str) -> str:
    """A path by its last names: ``head.memory.0.size`` is memory.0.size."""
    return path.removeprefix("head.")


def _titled(column: Column) -> str:
    return column.title + (", share right" if column.kind == "score" else "")


def _label(value: str) -> str:
    return cut(value_in_a_line(json.loads(value)))
