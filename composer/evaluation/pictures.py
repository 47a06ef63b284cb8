"""The report of an evaluation as pictures.

They are scores over length, over length and depth, and
the loss over the position.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from composer.evaluation.cells import DEPTHS, EvaluationCell, interval_of
from composer.evaluation.folder import PLOTS, STORE
from composer.evaluation.report import EvaluationReport, TaskIdentity
from composer.reporting.plotting import MAP, add_title, doubling_ticks, legend, look, panels, plain, whole_ticks
from composer.runs.store import write_pictures

NAMES = {"written": "accuracy", "candidates": "accuracy", "tokens": "accuracy", "loss": "loss"}
ACROSS = 3
"""The most maps side by side."""


def draw(report: EvaluationReport, folder: Path) -> list[Path]:
    """Write the pictures of the report, and return their paths. Raises EvaluationError."""
    with STORE.writing(folder / PLOTS):
        return write_pictures(partial(_pictures, report), folder / PLOTS)


def _pictures(report: EvaluationReport, pyplot: Any) -> Iterator[tuple[str, Any]]:
    """Yield all pictures that the report has data for, with the names of their files."""
    uses: Counter[str] = Counter()
    for task in report.setting.tasks:
        cells = {model.label: _good(report, model.label, task.label) for model in report.setting.models}
        name = re.sub(r"[^\w.-]+", "_", task.label)
        uses[name] += 1
        name += f"-{uses[name]}" if uses[name] > 1 else ""  # labels may differ in punctuation alone
        if not any(cells.values()):
            continue
        yield f"{NAMES[task.scored]}-{name}", _over_length(pyplot, task, cells)
        if any(cell.by_depth for every in cells.values() for cell in every):
            yield f"depth-{name}", _over_depth(pyplot, task, cells)
        if any(cell.by_position for every in cells.values() for cell in every):
            yield f"position-{name}", _over_position(pyplot, task, cells)


def _good(report: EvaluationReport, model: str, task: str) -> list[EvaluationCell]:
    """Return the cells that did not fail, by length."""
    return [cell for cell in report.cells if (cell.model, cell.task) == (model, task) and cell.mean is not None]


def _over_length(pyplot: Any, task: TaskIdentity, cells: dict[str, list[EvaluationCell]]) -> Any:
    """Return a line a model, with 95 % intervals."""
    figure, (axis,) = panels(pyplot, 1, height=4.4, margin=0)
    for index, (model, every) in enumerate(cells.items()):
        if not every:  # a legend names what is drawn
            continue
        means, errors = [cell.mean for cell in every], [_error(cell) for cell in every]
        axis.errorbar([cell.length for cell in every], means, yerr=list(zip(*errors, strict=True)), capsize=3, **look(index, model))
    doubling_ticks(axis, sorted({cell.length for every in cells.values() for cell in every}))
    measure = "nats per token" if task.scored == "loss" else "share answered right"
    axis.set(xlabel="tokens of the text", ylabel=measure)
    add_title(figure, f"{task.label}: {measure}, with 95 % intervals")
    if task.scored != "loss":
        axis.set_ylim(-0.03, 1.03)
    legend(figure, axis, columns=4)
    return figure


def _error(cell: EvaluationCell) -> tuple[float, float]:
    """Return the distances from the mean down and up to the ends of its interval; 0 where there is no interval."""
    assert cell.mean is not None
    ends = interval_of(cell.scored, cell.mean, cell.standard_error, cell.samples)
    return (cell.mean - ends[0], ends[1] - cell.mean) if ends else (0.0, 0.0)


def _over_depth(pyplot: Any, task: TaskIdentity, cells: dict[str, list[EvaluationCell]]) -> Any:
    """Draw a square for each length and depth, in one panel per model; white where no needle was placed. All panels have all
    lengths, so that columns below each other have the same length."""
    import numpy as np

    lengths = sorted({cell.length for every in cells.values() for cell in every})
    across = min(ACROSS, len(cells))
    figure, axes = panels(pyplot, len(cells), height=3.1, across=ACROSS, margin=0.5, sharex=True, sharey=True)
    image = None
    for place, (axis, (model, every)) in enumerate(zip(axes, cells.items(), strict=True)):
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
    figure.colorbar(image, ax=axes, label="share answered right")
    add_title(figure, f"{task.label}: share answered right, by the depth of the needle (white: not tested)")
    return figure


def _over_position(pyplot: Any, task: TaskIdentity, cells: dict[str, list[EvaluationCell]]) -> Any:
    """Return a line a model, at the longest length that it has."""
    figure, (axis,) = panels(pyplot, 1, height=4.4, margin=0)
    for index, (model, every) in enumerate(cells.items()):
        for cell in every[-1:]:
            places = [(part.start + part.end - 1) / 2 for part in cell.by_position]
            style = look(index, f"{model}, {cell.length:,} tokens") | {"marker": None}
            axis.plot(places, [part.nats for part in cell.by_position], **style)
    axis.set(xlabel="position in the text (tokens)", ylabel="nats per token")
    whole_ticks(axis)
    add_title(figure, f"{task.label}: nats per token, by its position")
    legend(figure, axis, columns=3)
    return figure
