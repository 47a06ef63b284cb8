"""Pictures of a report: scores over length, over length and depth, and the loss over the position."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from composer.evaluation.folder import PLOTS, whole
from composer.evaluation.report import DEPTHS, EvaluationCell, EvaluationReport, TaskFacts, interval_of
from composer.plotting import RESOLUTION, offscreen

NAMES = {"written": "accuracy", "tokens": "accuracy", "loss": "loss"}


def draw(report: EvaluationReport, folder: Path) -> list[Path]:
    """Writes all pictures that the report has anything for, each whole or not at all; gives their paths. Raises EvaluationError."""
    pyplot = offscreen()
    written = []
    for name, figure in _figures(report, pyplot):
        target = folder / PLOTS / f"{name}.png"
        with whole(target) as partial:
            figure.savefig(partial, dpi=RESOLUTION, format="png")
        pyplot.close(figure)
        written.append(target)
    return written


def _figures(report: EvaluationReport, pyplot: Any) -> Iterator[tuple[str, Any]]:
    for task in report.setting.tasks:
        cells = {model.label: _good(report, model.label, task.label) for model in report.setting.models}
        name = re.sub(r"[^\w.-]+", "_", task.label)
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


def _over_length(pyplot: Any, task: TaskFacts, cells: dict[str, list[EvaluationCell]]) -> Any:
    """A line a model, with 95 % intervals."""
    figure, axis = pyplot.subplots(figsize=(6, 4), layout="constrained")
    for model, every in cells.items():
        means, errors = [cell.mean for cell in every], [_error(cell) for cell in every]
        axis.errorbar(
            [cell.length for cell in every], means, yerr=list(zip(*errors, strict=True)), marker="o", capsize=3, label=model
        )
    lengths = sorted({cell.length for every in cells.values() for cell in every})
    axis.set_xscale("log", base=2)
    axis.set_xticks(lengths, [f"{length:,}" for length in lengths])
    axis.minorticks_off()
    axis.set(title=task.label, xlabel="tokens", ylabel="nats per token" if task.scored == "loss" else "accuracy")
    if task.scored != "loss":
        axis.set_ylim(-0.03, 1.03)
    axis.legend(fontsize="small")
    return figure


def _error(cell: EvaluationCell) -> tuple[float, float]:
    """How far the interval goes down and up from the mean; not at all where there is none."""
    assert cell.mean is not None
    ends = interval_of(cell.scored, cell.mean, cell.standard_error, cell.samples)
    return (cell.mean - ends[0], ends[1] - cell.mean) if ends else (0.0, 0.0)


def _over_depth(pyplot: Any, task: TaskFacts, cells: dict[str, list[EvaluationCell]]) -> Any:
    """A square for each length and depth, in one panel a model; white where no needle stood."""
    import numpy as np

    figure, axes = pyplot.subplots(
        1, len(cells), figsize=(1.5 + 3.5 * len(cells), 4), squeeze=False, sharey=True, layout="constrained"
    )
    for axis, (model, every) in zip(axes[0], cells.items(), strict=True):
        scores = np.full((DEPTHS, max(1, len(every))), np.nan)
        for column, cell in enumerate(every):
            for part in cell.by_depth:
                scores[round(part.start * DEPTHS), column] = part.mean
        image = axis.imshow(scores, vmin=0, vmax=1, cmap="viridis", aspect="auto")
        axis.set_xticks(range(len(every)), [f"{cell.length:,}" for cell in every], rotation=45)
        axis.set_yticks(range(DEPTHS), [f"{100 * part // DEPTHS} %" for part in range(DEPTHS)])
        axis.set(title=model, xlabel="tokens")
        if axis is axes[0][0]:
            axis.set_ylabel("depth of the needle, from")
        if axis is axes[0][-1]:
            figure.colorbar(image, ax=axis, label="accuracy")
    figure.suptitle(task.label)
    return figure


def _over_position(pyplot: Any, task: TaskFacts, cells: dict[str, list[EvaluationCell]]) -> Any:
    """A line a model, at the longest length that it has."""
    figure, axis = pyplot.subplots(figsize=(6, 4), layout="constrained")
    for model, every in cells.items():
        for cell in every[-1:]:
            places = [(part.start + part.end - 1) / 2 for part in cell.by_position]
            axis.plot(places, [part.nats for part in cell.by_position], label=f"{model}, {cell.length:,} tokens")
    axis.set(title=task.label, xlabel="position", ylabel="nats per token")
    axis.legend(fontsize="small")
    return figure
