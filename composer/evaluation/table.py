"""The report as tables: one for each task, a row a model, a column a length."""

from __future__ import annotations

from collections.abc import Iterator

from composer.evaluation.report import EvaluationCell, EvaluationReport
from composer.tables import Table
from composer.tasks.base import Scored

MEANING: dict[Scored, str] = {
    "written": "share of samples answered right",
    "tokens": "share of answer tokens that are the first choice",
    "loss": "nats per token",
}


def tables(report: EvaluationReport) -> Iterator[Table]:
    """One for each task, and one for lm-eval's figures."""
    setting = report.setting
    for task in setting.tasks:
        rows = tuple(
            (model.label, *(said(report.cell(model.label, task.label, length)) for length in setting.lengths))
            for model in setting.models
        )
        yield Table(f"{task.label}: {MEANING[task.scored]}", ("model", *(f"{length:,}" for length in setting.lengths)), rows)
    if report.harness:
        rows = tuple(
            (
                one.model,
                one.task,
                one.metric if one.filter == "none" else f"{one.metric} ({one.filter})",
                _said(one.value, one.standard_error),
            )
            for one in report.harness
        )
        yield Table("lm-eval", ("model", "task", "metric", "value"), rows)


def markdown(report: EvaluationReport) -> str:
    """All tables, for ``table.md``."""
    return "\n".join(table.markdown() for table in tables(report)) + "".join(f"\n{one}\n" for one in note(report))


def note(report: EvaluationReport) -> tuple[str, ...]:
    """What the figures are means of; nothing where there are none."""
    counts = sorted({cell.samples for cell in report.cells if cell.failure is None})
    listed = " or ".join(f"{count:,}" for count in counts)
    return (f"Mean ± standard error of {listed} samples, seed {report.setting.seed}.",) if counts else ()


def said(cell: EvaluationCell) -> str:
    """A cell in words: ``0.940 ± 0.034``."""
    return cell.failure or "" if cell.mean is None else _said(cell.mean, cell.standard_error)


def _said(value: float, error: float | None) -> str:
    return f"{value:.3f}" if error is None else f"{value:.3f} ± {error:.3f}"
