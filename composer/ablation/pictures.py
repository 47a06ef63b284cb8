"""The report of an ablation in pictures: bars for each figure, a heat map where two things vary, and quality over memory."""

from __future__ import annotations

import json
from pathlib import Path

from composer.ablation.report import AblationReport, Column, VariantReport
from composer.ablation.table import cut, number, said, value_in_a_line
from composer.plotting import offscreen, save

PLOT, GRID, STATE = "plot.png", "grid.png", "state.png"
BARS, TEACHER = "#0072B2", "#D55E00"
COLOURS, MARKERS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#000000", "#F0E442"), "os^Dv*P"
"""Okabe and Ito's, which all eyes tell apart."""
LOG_FROM = 20
"""Where the largest figure is so many times the smallest, an axis is logarithmic."""


def draw_all(report: AblationReport, folder: Path) -> None:
    """Each picture that there is something for, as a whole or not at all; one of an earlier call that has become moot is removed.
    Raises OSError."""
    draw(report, folder / PLOT)
    for name, picture in ((GRID, _grid), (STATE, _over_state)):
        if not picture(report, folder / name):
            (folder / name).unlink(missing_ok=True)


def draw(report: AblationReport, target: Path) -> None:
    """Each column as a row of bars, a variant each, with its spread, and the teacher as a line; nothing where nothing was found."""
    if not report.columns:
        return
    pyplot, names = offscreen(), [variant.name for variant in report.variants]
    height = 0.6 + 0.3 * len(names)
    figure, axes = pyplot.subplots(
        len(report.columns), 1, figsize=(7, height * len(report.columns)), squeeze=False, layout="constrained"
    )
    for axis, column in zip(axes[:, 0], report.columns, strict=True):
        found = [variant.figures.get(column.title) for variant in report.variants]
        means = [0.0 if one is None else one.mean for one in found]
        axis.barh(names, means, xerr=[0.0 if one is None else one.spread or 0.0 for one in found], color=BARS, alpha=0.8)
        axis.bar_label(axis.containers[-1], [said(one) for one in found], padding=3, fontsize="small")
        axis.set_title(_titled(column), fontsize="medium", loc="left")
        axis.invert_yaxis()
        axis.margins(x=0.2)
        teacher = teacher_on(report, column)
        if teacher is not None:
            axis.axvline(teacher, color=TEACHER, linestyle="--", label=f"teacher, {number(teacher)}")
            axis.legend(fontsize="small", loc="lower right", bbox_to_anchor=(1, 1), frameon=False, borderaxespad=0)
        if column.kind == "score":
            axis.set_xlim(0, 1.25)
        elif min((one.mean for one in found if one is not None), default=1.0) * LOG_FROM < max(means):
            axis.set_xscale("log")
    save(figure, target)


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
    """A heat map of each column. Gives whether there was a grid to draw."""
    grid = grid_of(report)
    if grid is None or not report.columns:
        return False
    import numpy as np

    (down, across), first, second, variants = grid
    pyplot, count = offscreen(), len(report.columns)
    across_figure = min(count, 2)
    size = (max(4.5, 1.1 * len(second) + 3.0), max(2.6, 0.5 * len(first) + 1.8))
    figure, axes = pyplot.subplots(
        -(-count // across_figure),
        across_figure,
        figsize=(size[0] * across_figure, size[1] * -(-count // across_figure)),
        squeeze=False,
        layout="constrained",
    )
    for axis in axes.flat[count:]:
        axis.set_axis_off()
    for axis, column in zip(axes.flat, report.columns, strict=False):
        found = [[variants[row, cell].figures.get(column.title) for cell in second] for row in first]
        means = np.array([[np.nan if one is None else one.mean for one in row] for row in found])
        positive = means[np.isfinite(means)]
        log = column.kind != "score" and positive.size > 0 and positive.min() > 0 and positive.max() > LOG_FROM * positive.min()
        colours = pyplot.matplotlib.colors
        norm = colours.LogNorm() if log else colours.Normalize(0, 1) if column.kind == "score" else None
        image = axis.imshow(means, cmap="cividis", norm=norm, aspect="auto")
        for row, figures in enumerate(found):
            for cell, one in enumerate(figures):
                ink = "white" if one is not None and image.norm(means[row, cell]) < 0.5 else "black"
                axis.text(cell, row, said(one), ha="center", va="center", color=ink, fontsize="small")
        axis.set_xticks(range(len(second)), [_label(value) for value in second], rotation=20 if len(second) > 3 else 0)
        axis.set_yticks(range(len(first)), [_label(value) for value in first])
        axis.set(xlabel=across, ylabel=down)
        teacher = teacher_on(report, column)
        axis.set_title(_titled(column) + ("" if teacher is None else f" (teacher {number(teacher)})"), fontsize="medium")
        figure.colorbar(image, ax=axis)
    save(figure, target)
    return True


def _over_state(report: AblationReport, target: Path) -> bool:
    """Each column over the bytes of a row's state, a point a variant, with the teacher's cache as a line. Gives whether there was
    something to draw: variants whose states differ."""
    sizes = {variant.state_bytes for variant in report.variants if variant.state_bytes}
    columns = [column for column in report.columns if column.kind not in ("mse", "divergence", "before")]
    if len(sizes) < 2 or not columns:
        return False
    pyplot = offscreen()
    figure, axes = pyplot.subplots(
        len(columns),
        1,
        figsize=(8.5, max(3.2, 0.25 * len(report.variants) + 1) * len(columns)),
        squeeze=False,
        layout="constrained",
    )
    for axis, column in zip(axes[:, 0], columns, strict=True):
        for place, variant in enumerate(report.variants):
            one = variant.figures.get(column.title)
            if one is None or not variant.state_bytes:
                continue
            look = {"color": COLOURS[place % len(COLOURS)], "marker": MARKERS[place // len(COLOURS) % len(MARKERS)]}
            spread = {"yerr": one.spread, "capsize": 3, "linestyle": "none", "label": variant.name}
            axis.errorbar(variant.state_bytes / 1024, one.mean, **look, **spread)
        caches = {variant.kv_cache_bytes for variant in report.variants if variant.kv_cache_bytes}
        teacher = teacher_on(report, column)
        if len(caches) == 1:
            axis.axvline(next(iter(caches)) / 1024, color=TEACHER, linestyle=":", label="softmax attention's cache")
        if teacher is not None:
            axis.axhline(teacher, color=TEACHER, linestyle="--", label=f"teacher, {number(teacher)}")
        axis.legend(fontsize="small", loc="upper left", bbox_to_anchor=(1.01, 1), borderaxespad=0, frameon=False)
        if column.kind == "score":
            axis.set_ylim(-0.05, 1.05)
        length = f" at {report.state_length:,} tokens" if report.state_length else ""
        axis.set_xscale("log", base=2)
        axis.xaxis.set_major_formatter(lambda size, _: f"{size:g}")
        axis.margins(x=0.2)
        axis.set(xlabel=f"state of one text{length}, KiB", ylabel=_titled(column))
    save(figure, target)
    return True


def _titled(column: Column) -> str:
    return column.title + (", share right" if column.kind == "score" else "")


def _label(value: str) -> str:
    return cut(value_in_a_line(json.loads(value)))
