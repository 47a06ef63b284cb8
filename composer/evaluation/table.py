"""The report as tables: one for each task, a row a model, a column a length."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from composer.escape import escape_markdown
from composer.evaluation.harness_results import CutRequests
from composer.evaluation.report import CellKey, EvaluationCell, EvaluationReport, interval_of
from composer.tables import Table
from composer.tasks.base import Scored
from composer.words import plural

MEANING: dict[Scored, str] = {
    "written": "share of samples answered right",
    "tokens": "share of answer tokens that are the first choice",
    "loss": "nats per token",
}
PERPLEXITY = "perplexity"
"""exp of the nats per token."""
NOT_ASKED = "–"


def tables(report: EvaluationReport) -> Iterator[Table]:
    """A table for each task, another with the perplexity for each that is scored by loss, and one for lm-eval's figures."""
    for task in report.setting.tasks:
        yield _table(report, task.label, MEANING[task.scored], cell_text)
        if task.scored == "loss":
            yield _table(report, task.label, PERPLEXITY, perplexity)
    if report.harness:
        rows = tuple(
            (
                one.model,
                one.task,
                one.metric if one.filter == "none" else f"{one.metric} ({one.filter})",
                _with_error(one.value, one.standard_error),
            )
            for one in report.harness
        )
        if report.cut:
            cut = {(one.model, one.task): f"{one.cut:,} of {one.requests:,}" for one in report.cut}
            rows = tuple((*row, cut.get((row[0], row[1]), "0")) for row in rows)
            yield Table("lm-eval", ("model", "task", "metric", "value", "requests cut"), rows, range(3, 5))
        else:
            yield Table("lm-eval", ("model", "task", "metric", "value"), rows, range(3, 4))


def _table(report: EvaluationReport, task: str, meaning: str, words: Callable[[EvaluationCell], str]) -> Table:
    """A row a model, a column a length."""
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


def markdown(report: EvaluationReport) -> str:
    """All tables, for ``table.md``."""
    return "\n".join(table.markdown() for table in tables(report)) + "".join(f"\n{escape_markdown(one)}\n" for one in note(report))


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

    yield from (f"{one.model}: {cut_in_words(one)}" for one in report.cut)


def cut_in_words(cut: CutRequests) -> str:
    """How many requests of a task of lm-eval were cut."""
    return (
        f"lm-eval's {cut.task}: {cut.cut:,} of {plural(cut.requests, 'request')} were longer than {cut.max_length:,} tokens "
        f"(--max-length) and lost their beginnings; the longest has {cut.longest:,}."
    )


def cell_text(cell: EvaluationCell) -> str:
    """A cell in words: ``0.940 [0.875, 0.972]``; of a loss ``1.610 ± 0.034``."""
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
