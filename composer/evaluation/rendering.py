"""The report of an evaluation as tables and pictures.

The tables are one for each task, a row a model, a column a length. The pictures are scores over length, over length and depth, and
the loss over the position.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from composer.evaluation.folder import PLOTS, STORE
from composer.evaluation.report import DEPTHS, CellKey, CutRequests, EvaluationCell, EvaluationReport, TaskIdentity, interval_of
from composer.reporting.plotting import MAP, add_title, doubling_ticks, legend, look, panels, plain, whole_ticks
from composer.reporting.tables import Table
from composer.reporting.words import plural
from composer.runs.store import write_pictures
from composer.tasks.base import Scored

MEANING: dict[Scored, str] = {
    "written": "share of samples answered right",
    "candidates": "share of samples answered right",
    "tokens": "share of answer tokens that are the first choice",
    "loss": "nats per token",
}
PERPLEXITY = "perplexity"
"""exp of the nats per token."""
NOT_ASKED = "–"
NAMES = {"written": "accuracy", "candidates": "accuracy", "tokens": "accuracy", "loss": "loss"}
ACROSS = 3
"""The most maps side by side."""


def tables(report: EvaluationReport) -> Iterator[Table]:
    """Yield a table for each task, another with the perplexity for each that is scored by loss, and one for lm-eval's figures."""
    for task in report.setting.tasks:
        yield _table(report, task.label, MEANING[task.scored], cell_text)
        if task.scored == "loss":
            yield _table(report, task.label, PERPLEXITY, perplexity)
    if report.harness:
        rows = tuple(
            (
                figure.model,
                figure.task,
                figure.metric if figure.filter == "none" else f"{figure.metric} ({figure.filter})",
                _with_error(figure.value, figure.standard_error),
            )
            for figure in report.harness
        )
        if report.cut:
            cut = {(figure.model, figure.task): f"{figure.cut:,} of {figure.requests:,}" for figure in report.cut}
            rows = tuple((*row, cut.get((row[0], row[1]), "0")) for row in rows)
            yield Table("lm-eval", ("model", "task", "metric", "value", "requests cut"), rows, range(3, 5))
        else:
            yield Table("lm-eval", ("model", "task", "metric", "value"), rows, range(3, 4))


def _table(report: EvaluationReport, task: str, meaning: str, words: Callable[[EvaluationCell], str]) -> Table:
    """Return a row a model, a column a length."""
    known = {cell.key: cell for cell in report.cells}
    lengths = report.setting.lengths
    rows = tuple(
        (
            model.label,
            *(NOT_ASKED if (cell := known.get(CellKey(model.label, task, length))) is None else words(cell) for length in lengths),
        )
        for model in report.setting.models
    )
    headers = ("model", *(f"{length:,}" for length in lengths))
    return Table(f"{task}: {meaning}", headers, rows, range(1, len(headers)))


def note(report: EvaluationReport) -> Iterator[str]:
    """Explanations of the tables' figures."""
    good = [cell for cell in report.cells if cell.mean is not None]
    if good:
        counts = " or ".join(f"{count:,}" for count in sorted({cell.samples for cell in good}))
        forms = [
            words
            for words, shown in (("[95 % interval]", True), ("± standard error", False))
            if any((cell.scored != "loss") is shown for cell in good)
        ]
        yield f"Mean {' or '.join(forms)} of {counts} samples, seed {report.setting.seed}."

    yield from (f"{cut.model}: {cut_in_words(cut)}" for cut in report.cut)


def cut_in_words(cut: CutRequests) -> str:
    """Return how many requests of a task of lm-eval were cut."""
    return (
        f"lm-eval's {cut.task}: {cut.cut:,} of {plural(cut.requests, 'request')} were longer than {cut.max_length:,} tokens "
        f"(--max-length) and lost their beginnings; the longest has {cut.longest:,}."
    )


def cell_text(cell: EvaluationCell) -> str:
    """Return a cell in words: ``0.940 [0.875, 0.972]``; of a loss ``1.610 ± 0.034``."""
    if cell.mean is None:
        return cell.failure or ""
    if cell.scored == "loss":
        return _with_error(cell.mean, cell.standard_error)
    ends = interval_of(cell.scored, cell.mean, cell.standard_error, cell.samples)
    return f"{cell.mean:.3f}" + ("" if ends is None else f" [{ends[0]:.3f}, {ends[1]:.3f}]")


def perplexity(cell: EvaluationCell) -> str:
    if cell.mean is None:
        return cell.failure or ""
    return "beyond all numbers" if cell.perplexity is None else f"{cell.perplexity:.4g}"


def _with_error(value: float, error: float | None) -> str:
    return f"{value:.3f}" if error is None else f"{value:.3f} ± {error:.3f}"


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
    what = "nats per token" if task.scored == "loss" else "share answered right"
    axis.set(xlabel="tokens of the text", ylabel=what)
    add_title(figure, f"{task.label}: {what}, with 95 % intervals")
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
