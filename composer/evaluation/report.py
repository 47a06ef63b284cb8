"""The report of an evaluation: its cells, the settings to repeat it with, and its tables.

The tables are one for each task, a row a model, a column a length.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Literal, Self

from pydantic import JsonValue

from blocks.part import Closed
from composer.evaluation.cells import CellKey, EvaluationCell, interval_of
from composer.graph.lowering import AUTO
from composer.reporting.tables import Table, View, cell_at
from composer.reporting.words import plural
from composer.runs.store import RunReport, Settings, differences
from composer.system.json_files import Count
from composer.tasks.base import Scored
from composer.weights.opened import OpenedFacts

MEANING: dict[Scored, str] = {
    "written": "share of samples answered right",
    "candidates": "share of samples answered right",
    "tokens": "share of answer tokens that are the first choice",
    "loss": "nats per token",
}
PERPLEXITY = "perplexity"
"""exp of the nats per token."""
NOT_ASKED = "–"


class HarnessFacts(Closed):
    """The tasks that lm-eval runs, and its options. files: SHA-256 of those in the included folder."""

    tasks: tuple[str, ...]
    limit: Count | float | None
    files: dict[str, str]
    num_fewshot: Count | None = None
    max_length: Count | None = None
    chat_template: bool | str = False
    system_instruction: str | None = None
    fewshot_as_multiturn: bool = True


class CutRequests(Closed):
    """The requests of a task of lm-eval that were longer than ``max_length`` and lost their first tokens.

    requests: all requests of the task; of a multiple-choice task each choice is one. longest: in tokens. For a task that
    generates, a prompt also leaves room for the tokens to generate.
    """

    task: str
    requests: Count
    cut: Count
    longest: Count
    max_length: Count


class ModelCutRequests(CutRequests):
    """The cut requests of a task, and the model that was scored."""

    model: str


class HarnessResult(Closed):
    """lm-eval's results for one model: figures by task and ``metric,filter``, and the tasks whose requests were cut."""

    model: str
    results: dict[str, dict[str, float]]
    cut: tuple[CutRequests, ...] = ()


class HarnessFigure(Closed):
    """One figure of lm-eval."""

    model: str
    task: str
    metric: str
    filter: str
    value: float
    standard_error: float | None


HARNESS_PACKAGE = "lm-eval"
"""Its version is a setting of evaluations that run it."""


class EvaluatedModelFacts(OpenedFacts):
    """The identity of an evaluated model, the hash of its tokenizer included."""

    tokenizer_sha256: str


class TaskIdentity(Closed):
    """A task with all of its options. files: SHA-256 of those that they name. provenance: of its texts, where the task has it."""

    label: str
    scored: Scored
    source: str
    options: dict[str, JsonValue]
    files: dict[str, str]
    provenance: dict[str, str] | None = None


class EvaluationSetting(Settings):
    """The settings that decide the numbers of an evaluation."""

    models: tuple[EvaluatedModelFacts, ...]
    tasks: tuple[TaskIdentity, ...]
    lengths: tuple[Count, ...]
    samples: Count
    seed: int
    device: str
    backend: str = AUTO
    """Which forms ran the heads of built models."""
    harness: HarnessFacts | None
    versions: dict[str, str]

    def identity(self) -> dict[str, Any]:
        """Return all settings but the models' folders."""
        return self.model_dump(mode="json", exclude={"models": {"__all__": {"reference"}}})

    def differences(self, now: Any) -> list[str]:
        """Compare what both have: a continued evaluation may have other models, tasks and lengths, and lm-eval beside them."""
        sides = (self.identity(), now.identity())
        for key in ("models", "tasks"):
            labels = [item["label"] for item in sides[0][key] if item["label"] in {other["label"] for other in sides[1][key]}]
            for side in sides:
                items = {item["label"]: item for item in side[key]}
                side[key] = [items[label] for label in labels]
        for side in sides:
            side["lengths"] = []
            if not (self.harness and now.harness):
                side["harness"] = None
                side["versions"].pop(HARNESS_PACKAGE, None)
            if not (self.tasks and now.tasks):
                side["samples"] = None
        return list(differences(*sides))

    def join_with(self, now: Any) -> Self:
        """Return the settings with the models, tasks and lengths of both."""
        return self.model_copy(
            update={
                "models": tuple({model.label: model for model in (*self.models, *now.models)}.values()),
                "tasks": tuple({task.label: task for task in (*self.tasks, *now.tasks)}.values()),
                "lengths": tuple(sorted({*self.lengths, *now.lengths})),
                "samples": (self if self.tasks else now).samples,
                "harness": self.harness or now.harness,
                "versions": self.versions | now.versions,
            }
        )

    def samples_of(self, task: TaskIdentity) -> int:
        """Return the number of samples of a cell. A text that is shorter than that many windows has fewer."""
        sample_count = task.options.get("samples")
        return sample_count if isinstance(sample_count, int) else self.samples


class EvaluationReport(RunReport):
    """The whole evaluation, as ``results.json`` has it."""

    format: Literal[1] = 1
    setting: EvaluationSetting
    batch_tokens: int
    cells: tuple[EvaluationCell, ...]
    harness: tuple[HarnessFigure, ...] = ()
    cut: tuple[ModelCutRequests, ...] = ()
    """The requests of lm-eval's tasks that were longer than a model's ``max_length``, by model and task."""

    def view(self) -> View:
        return View("", tuple(tables(self)), tuple(note(self)))

    def cell(self, model: str, task: str, length: int) -> EvaluationCell:
        """Raise KeyError, which names the cells that there are."""
        return cell_at((model, task, length), {cell.key: cell for cell in self.cells})


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
    cells = {cell.key: cell for cell in report.cells}
    lengths = report.setting.lengths
    rows = tuple(
        (
            model.label,
            *(NOT_ASKED if (cell := cells.get(CellKey(model.label, task, length))) is None else words(cell) for length in lengths),
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
