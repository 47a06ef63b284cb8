"""The report of an ablation as pictures: bars for each figure, a heat map of a grid, and quality over memory."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from composer.ablation.report import AblationReport, Column, Figure, VariantReport, cut, figure_text, number
from composer.reporting.plotting import MAP, TEACHER, WIDTH, add_title, colour, look, panels, within_shares
from composer.runs.store import write_pictures
from composer.spec.writing import format_value as value_in_a_line

ROOM = 0.75
"""Inches that a figure and its spread need in a cell of a heat map. In a narrower cell the spread is left out."""
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
    """Write each picture that the report has data for, and remove other pictures of earlier calls. Raises OSError."""
    write_pictures(partial(_pictures, report), folder, [f"{name}.png" for name in PICTURES])


def _pictures(report: AblationReport, pyplot: Any) -> Iterator[tuple[str, Any]]:
    for name, draw in PICTURES.items():
        figure = draw(report, pyplot) if report.columns else None
        if figure is not None:
            yield name, figure


def _plot(report: AblationReport, pyplot: Any) -> Any:
    """Return each column as a row of bars, a variant each, with its spread, and the teacher as a line."""
    names = [variant.name for variant in report.variants]
    figure, axes = panels(pyplot, len(report.columns), height=0.6 + 0.3 * len(names), margin=0.4)
    for axis, column in zip(axes, report.columns, strict=True):
        _bars(axis, report, column, names)
    add_title(figure, "What the variants reach")
    return figure


def _bars(axis: Any, report: AblationReport, column: Column, names: list[str]) -> None:
    figures = [variant.figures.get(column.title) for variant in report.variants]
    means = [0.0 if figure is None else figure.mean for figure in figures]
    axis.barh(
        names, means, xerr=list(zip(*(_spread(column, figure) for figure in figures), strict=True)), color=colour(0), alpha=0.8
    )
    axis.bar_label(axis.containers[-1], [figure_text(figure) for figure in figures], padding=3, fontsize=8)
    axis.set_title(_title(column))
    axis.invert_yaxis()
    axis.margins(x=0.2)
    teacher = teacher_on(report, column)
    if teacher is not None:
        axis.axvline(teacher, color=TEACHER, linestyle="--", label=f"teacher, {number(teacher)}")
        axis.legend(loc="lower right", bbox_to_anchor=(1, 1), borderaxespad=0)
    if column.kind == "score":
        axis.set_xlim(0, 1.25)
        axis.set_xticks([0, 0.2, 0.4, 0.6, 0.8, 1])
    elif min((figure.mean for figure in figures if figure is not None), default=1.0) * LOG_FROM < max(means):
        axis.set_xscale("log")
    axis.set_xlabel(UNITS[column.kind])


def _spread(column: Column, figure: Figure | None) -> tuple[float, float]:
    """Return the lengths of the error bar of a figure, down and up."""
    if figure is None or figure.spread is None:
        return 0.0, 0.0
    return within_shares(figure.mean, figure.spread) if column.kind == "score" else (figure.spread, figure.spread)


def teacher_on(report: AblationReport, column: Column) -> float | None:
    """Return the teacher's own figure in a column; None where it has none, or where variants had other rows held out."""
    perplexities = {variant.teacher_perplexity for variant in report.variants}
    if column.kind in ("before", "after"):
        return next(iter(perplexities)) if len(perplexities) == 1 else None
    return report.teacher.get(column.title)


def grid_of(report: AblationReport) -> tuple[tuple[str, str], list[str], list[str], dict[tuple[str, str], VariantReport]] | None:
    """Return the two paths that the variants differ at, the values of each, and the variant of each pair; None where they are no
    grid."""
    paths = {tuple(variant.values) for variant in report.variants}
    if len(paths) != 1 or len(pair_of_paths := next(iter(paths))) != 2:
        return None
    placed = {tuple(json.dumps(variant.values[path]) for path in pair_of_paths): variant for variant in report.variants}
    first, second = (list(dict.fromkeys(pair[side] for pair in placed)) for side in (0, 1))
    if min(len(first), len(second)) < 2 or len(placed) != len(first) * len(second) or len(placed) != len(report.variants):
        return None
    return (pair_of_paths[0], pair_of_paths[1]), first, second, {(pair[0], pair[1]): variant for pair, variant in placed.items()}


def _grid(report: AblationReport, pyplot: Any) -> Any:
    """Return a heat map of each column; None where the variants are no grid."""
    grid = grid_of(report)
    if grid is None:
        return None
    import numpy as np

    (down, across), first, second, variants = grid
    count = len(report.columns)
    side_by_side = 2 if count > 1 and len(second) <= 3 else 1
    roomy = (WIDTH / side_by_side - 2) / len(second) > ROOM
    height = max(2.4, 0.4 * len(first) + 1.5)
    figure, axes = panels(pyplot, count, height=height, across=side_by_side, margin=0.4)
    for axis, column in zip(axes, report.columns, strict=True):
        figures = [[variants[row, cell].figures.get(column.title) for cell in second] for row in first]
        means = np.array([[np.nan if figure is None else figure.mean for figure in row] for row in figures])
        finite = means[np.isfinite(means)]
        is_log = column.kind != "score" and finite.size > 0 and finite.min() > 0 and finite.max() > LOG_FROM * finite.min()
        colours = pyplot.matplotlib.colors
        norm = colours.LogNorm() if is_log else colours.Normalize(0, 1) if column.kind == "score" else None
        image = axis.imshow(means, cmap=MAP, norm=norm, aspect="auto")
        for row, of_row in enumerate(figures):
            for cell, cell_figure in enumerate(of_row):
                ink = "white" if cell_figure is not None and image.norm(means[row, cell]) < 0.5 else "black"
                words = figure_text(cell_figure) if roomy or cell_figure is None else number(cell_figure.mean)
                axis.text(cell, row, words, ha="center", va="center", color=ink, fontsize=8)
        axis.set_xticks(range(len(second)), [_label(value) for value in second], rotation=0 if roomy else 90)
        axis.set_yticks(range(len(first)), [_label(value) for value in first])
        axis.set(xlabel=across, ylabel=down)
        teacher = teacher_on(report, column)
        axis.set_title(_title(column) + ("" if teacher is None else f" (teacher {number(teacher)})"))
        figure.colorbar(image, ax=axis, label=UNITS[column.kind])
    add_title(figure, f"{_last(down)} and {_last(across)} in every combination")
    return figure


def _over_state(report: AblationReport, pyplot: Any) -> Any:
    """Return each column over the bytes of a row's state, a point a variant, with the teacher's cache as a line; None where the
    variants' states do not differ."""
    sizes = {variant.state_bytes for variant in report.variants if variant.state_bytes}
    columns = [column for column in report.columns if column.kind not in ("mse", "divergence", "before")]
    if len(sizes) < 2 or not columns:
        return None
    figure, axes = panels(pyplot, len(columns), height=max(3.2, 0.25 * len(report.variants) + 1), margin=0.4)
    for axis, column in zip(axes, columns, strict=True):
        _points(axis, report, column)
    add_title(figure, "Scores of the variants over the bytes of their states")
    return figure


def _points(axis: Any, report: AblationReport, column: Column) -> None:
    for place, variant in enumerate(report.variants):
        figure = variant.figures.get(column.title)
        if figure is None or not variant.state_bytes:
            continue
        spread = {} if figure.spread is None else {"yerr": [[end] for end in _spread(column, figure)], "capsize": 3}
        axis.errorbar(variant.state_bytes / 1024, figure.mean, **look(place, variant.name) | {"linestyle": "none"}, **spread)
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
    axis.set(xlabel=f"state of one text{length}, KiB", ylabel=UNITS[column.kind])
    axis.set_title(_title(column))


def _last(path: str) -> str:
    """Return a path by its last names: ``head.memory.0.size`` is memory.0.size."""
    return path.removeprefix("head.")


def _title(column: Column) -> str:
    return column.title + (", share right" if column.kind == "score" else "")


def _label(value: str) -> str:
    return cut(value_in_a_line(json.loads(value)))


PICTURES = {"plot": _plot, "grid": _grid, "state": _over_state}
"""The functions that draw the pictures, by the names of their files."""
