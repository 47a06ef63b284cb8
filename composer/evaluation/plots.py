"""Pictures of a report: scores over length, over length and depth, and the loss over the position."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from composer.evaluation.folder import PLOTS, writable
from composer.evaluation.report import DEPTHS, EvaluationCell, EvaluationReport, TaskIdentity, interval_of
from composer.files import whole
from composer.plotting import MAP, RESOLUTION, WIDTH, colour, label, legend, line, marker, plain, plotting, titled, whole_ticks

NAMES = {"written": "accuracy", "tokens": "accuracy", "loss": "loss"}
ACROSS = 3
"""The most maps side by side."""


def draw(report: EvaluationReport, folder: Path) -> list[Path]:
    """Writes all pictures that the report has anything for, each whole or not at all; gives their paths. Raises EvaluationError."""
    written = []
    with plotting() as pyplot:
        for name, figure in _figures(report, pyplot):
            target = folder / PLOTS / f"{name}.png"
            with writable(target.parent), whole(target) as partial:
                figure.savefig(partial, dpi=RESOLUTION, format="png")
            pyplot.close(figure)
            written.append(target)
    return written


def _figures(report: EvaluationReport, pyplot: Any) -> Iterator[tuple[str, Any]]:
    taken: Counter[str] = Counter()
    for task in report.setting.tasks:
        cells = {model.label: _good(report, model.label, task.label) for model in report.setting.models}
        name = re.sub(r"[^\w.-]+", "_", task.label)
        taken[name] += 1
        name += f"-{taken[name]}" if taken[name] > 1 else ""  # labels may differ in punctuation alone
        if not any(cells.values()):
            continue
        yield f"{NAMES[task.scored]}-{name}", _over_length(pyplot, task, cells)
        if any(cell.by_depth for every in cells.values() for cell in every):
            yield f"depth-{name}", _over_depth(pyplot, task, cells)
        if any(cell.by_position for every in cells.values() for cell in every):
            yield f"position-{name}", _over_position(pyplot, task, cells)


def _good(report: EvaluationReport, model: str, task: str) -> list[EvaluationCell]:
    """The cells that did not fail, by length."""
    return [cell for cell in report.cells if (cell.model, cell.task) == (model, task) and cell.mean is not None]


def _over_length(pyplot: Any, task: TaskIdentity, cells: dict[str, list[EvaluationCell]]) -> Any:
    """A line a model, with 95 % intervals."""
    figure, axis = pyplot.subplots(figsize=(WIDTH, 4.4), layout="constrained")
    for index, (model, every) in enumerate(cells.items()):
        if not every:  # a legend names what is drawn
            continue
        means, errors = [cell.mean for cell in every], [_error(cell) for cell in every]
        look = {"color": colour(index), "linestyle": line(index), "marker": marker(index), "capsize": 3, "label": label(model)}
        axis.errorbar([cell.length for cell in every], means, yerr=list(zip(*errors, strict=True)), **look)
    lengths = sorted({cell.length for every in cells.values() for cell in every})
    axis.set_xscale("log", base=2)
    axis.set_xticks(lengths, [f"{length:,}" for length in lengths])
    axis.minorticks_off()
    what = "nats per token" if task.scored == "loss" else "share answered right"
    axis.set(xlabel="tokens of the text", ylabel=what)
    titled(figure, f"{task.label}: {what}, with 95 % intervals")
    if task.scored != "loss":
        axis.set_ylim(-0.03, 1.03)
    legend(figure, axis, columns=4)
    return figure


def _error(cell: EvaluationCell) -> tuple[float, float]:
    """The distances from the mean down and up to the ends of its interval; 0 where there is no interval."""
    assert cell.mean is not None
    ends = interval_of(cell.scored, cell.mean, cell.standard_error, cell.samples)
    return (cell.mean - ends[0], ends[1] - cell.mean) if ends else (0.0, 0.0)


def _over_depth(pyplot: Any, task: TaskIdentity, cells: dict[str, list[EvaluationCell]]) -> Any:
    """A square for each length and depth, in one panel a model; white where no needle stood. All panels have all lengths, so that
    columns below each other are of one length."""
    import numpy as np

    lengths = sorted({cell.length for every in cells.values() for cell in every})
    across = min(ACROSS, len(cells))
    down = -(-len(cells) // across)
    figure, axes = pyplot.subplots(
        down, across, figsize=(WIDTH, 3.1 * down + 0.5), squeeze=False, sharex=True, sharey=True, layout="constrained"
    )
    image = None
    for place, (model, every) in enumerate(cells.items()):
        axis = axes.flat[place]
        scores = np.full((DEPTHS, len(lengths)), np.nan)
        for cell in every:
            for part in cell.by_depth:
                scores[round(part.start * DEPTHS), lengths.index(cell.length)] = part.mean
        image = axis.imshow(scores, vmin=0, vmax=1, cmap=MAP, aspect="auto")
        axis.set_xticks(range(len(lengths)), [f"{length:,}" for length in lengths], rotation=90 if len(lengths) > 4 else 0)
        axis.set_yticks(range(DEPTHS), [f"{100 * part // DEPTHS} %" for part in range(DEPTHS)])
        axis.set_title(plain(model))
        if place + across >= len(cells):
            axis.set_xlabel("tokens of the text")
            axis.tick_params(labelbottom=True)
        if place % across == 0:
            axis.set_ylabel("depth of the needle, from")
    for axis in axes.flat[len(cells) :]:
        axis.set_visible(False)
    figure.colorbar(image, ax=axes, label="share answered right")
    titled(figure, f"{task.label}: share answered right, by where the needle stands (white: nowhere)")
    return figure


def _over_position(pyplot: Any, task: TaskIdentity, cells: dict[str, list[EvaluationCell]]) -> Any:
    """A line a model, at the longest length that it has."""
    figure, axis = pyplot.subplots(figsize=(WIDTH, 4.4), layout="constrained")
    for index, (model, every) in enumerate(cells.items()):
        for cell in every[-1:]:
            places = [(part.start + part.end - 1) / 2 for part in cell.by_position]
            look = {"color": colour(index), "linestyle": line(index), "label": label(f"{model}, {cell.length:,} tokens")}
            axis.plot(places, [part.nats for part in cell.by_position], **look)
    axis.set(xlabel="position in the text (tokens)", ylabel="nats per token")
    whole_ticks(axis)
    titled(figure, f"{task.label}: nats per token, by its position")
    legend(figure, axis, columns=3)
    return figure
