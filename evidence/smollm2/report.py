"""Tables and the picture of a plan's results: means, their standard errors, and paired differences to the teacher."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from composer.reporting.plotting import COLOURS, FAINT, TEACHER, WIDTH, add_title, label, legend, marker, plotting, save
from composer.reporting.tables import Table
from evidence.smollm2.plan import Plan
from evidence.smollm2.result import Result, read_result

RESAMPLES = 2000
"""Resamples of a paired bootstrap."""
TICKS = (1, 3, 10, 30, 100)
"""MiB of state on the axis of the picture."""
PARTS = 8
"""Parts of a text in the table of positions. Each has several of an evaluation's buckets."""
CHOICES = {
    "gates": "key heads by gates",
    "layers": "whole layers by gates",
    "restored": "whole layers by restored",
    "every": "every k-th layer",
    "random": "random key heads",
}
"""Labels of lines in the picture, by the way of choosing key heads."""

Scores = Callable[[Result], Sequence[float] | None]
"""Return the scores of a task's rows in a result, or None if it has none."""


@dataclass(frozen=True)
class Model:
    """A model of the plan, with the results of its seeds."""

    name: str
    results: tuple[Result, ...]

    def rows(self, scores: Scores) -> np.ndarray | None:
        """Return the score of each row, averaged over seeds, or None if a seed has no scores."""
        seed_scores = [scores(result) for result in self.results]
        if any(rows is None for rows in seed_scores):
            return None
        return np.mean([list(rows or ()) for rows in seed_scores], axis=0)


def models_of(plan: Plan, runs_folder: Path) -> list[Model]:
    """Return the models with results, the teacher first."""
    seeds = {plan.baseline: (0,)} | {student.name: student.seeds for student in plan.students}
    results_by_name = {name: [read_result(name, seed, runs_folder) for seed in model_seeds] for name, model_seeds in seeds.items()}
    models = [Model(name, tuple(result for result in results if result is not None)) for name, results in results_by_name.items()]
    return [model for model in models if model.results]


def mean_and_error(rows: np.ndarray) -> tuple[float, float]:
    """Return the mean and its standard error."""
    return float(rows.mean()), float(rows.std() / math.sqrt(len(rows)))


def bootstrap_difference(rows: np.ndarray, reference: np.ndarray) -> tuple[float, float, float]:
    """Return the mean difference on the same rows, and the bounds of the 95 % interval of a paired bootstrap."""
    samples = np.random.default_rng(0).integers(0, len(rows), (RESAMPLES, len(rows)))
    means = (rows - reference)[samples].mean(axis=1)
    low, high = np.quantile(means, (0.025, 0.975))
    return float((rows - reference).mean()), float(low), float(high)


def build_score_table(title: str, models: Sequence[Model], columns: dict[str, Scores], digits: int = 2) -> Table:
    """Build a table of means ± standard errors, with a row for each model and a column for each task.

    A star marks scores whose paired difference to the first model has a 95 % interval without 0.
    Models without a score are left out.
    """
    rows = []
    for model in models:
        cells = [_format_cell(model, models[0], scores, digits) for scores in columns.values()]
        if set(cells) != {"-"}:
            rows.append((model.name, *cells))
    return Table(title, ("", *columns), tuple(rows), range(1, len(columns) + 1))


def _format_cell(model: Model, first: Model, scores: Scores, digits: int) -> str:
    rows, first_rows = model.rows(scores), first.rows(scores)
    if rows is None:
        return "-"
    mean, error = mean_and_error(rows)
    text = f"{mean:.{digits}f} ± {error:.{digits}f}"
    if model is first or first_rows is None:
        return text
    _, low, high = bootstrap_difference(rows, first_rows)
    return f"{text} *" if low > 0 or high < 0 else text


def build_difference_table(title: str, models: Sequence[Model], columns: dict[str, Scores], digits: int = 2) -> Table:
    """Build a table with a row for each student: the mean difference to the first model on the same rows, and its 95 % interval."""
    rows = []
    for model in models[1:]:
        cells = []
        for scores in columns.values():
            model_rows, first_rows = model.rows(scores), models[0].rows(scores)
            if model_rows is None or first_rows is None:
                cells.append("-")
                continue
            mean, low, high = bootstrap_difference(model_rows, first_rows)
            cells.append(f"{mean:+.{digits}f} [{low:+.{digits}f}, {high:+.{digits}f}]")
        if set(cells) != {"-"}:
            rows.append((model.name, *cells))
    return Table(title, ("", *columns), tuple(rows), range(1, len(columns) + 1))


def harness_columns(plan: Plan) -> dict[str, Scores]:
    """Return a column for each task of lm-eval."""
    tasks = {name: task for harness in (plan.general, plan.written) if harness is not None for name, task in harness.tasks.items()}
    return {name: _harness_scores(name, task.metric) for name, task in tasks.items()}


def text_columns(plan: Plan) -> dict[str, Scores]:
    """Return a column of nats per token for each length of the text."""
    lengths = () if plan.text is None else plan.text.lengths
    return {f"{length:,}": _text_scores(length) for length in lengths}


def retrieval_columns(plan: Plan, length: int) -> dict[str, Scores]:
    """Return a column for each retrieval task at one length."""
    return {task: _retrieval_scores(task, length) for task in plan.retrieval.tasks}


def _harness_scores(task: str, metric: str) -> Scores:
    return lambda result: result.harness.get(task, {}).get(metric)


def _text_scores(length: int) -> Scores:
    return lambda result: result.text.get("perplexity", {}).get(length)


def _retrieval_scores(task: str, length: int) -> Scores:
    return lambda result: result.retrieval.get(task, {}).get(length)


def _needle_scores(plan: Plan, length: int) -> Scores:
    """Return the scores of the samples of all retrieval tasks that a result has."""

    def scores(result: Result) -> Sequence[float] | None:
        by_task = [result.retrieval.get(task, {}).get(length) for task in plan.retrieval.tasks]
        return [score for some in by_task for score in some or ()] or None

    return scores


def build_tables(plan: Plan, models: Sequence[Model]) -> Iterator[Table]:
    """Build the tables of a plan's results."""
    yield build_overview_table(plan, models)
    if harness := harness_columns(plan):
        yield build_score_table("Tasks of lm-eval: share of right answers", models, harness)
        yield build_difference_table("The same: paired differences to the teacher, with 95 % intervals", models, harness)
    if plan.text is not None:
        yield build_score_table("Text: nats a token, by the tokens of context", models, text_columns(plan), digits=3)
        yield build_position_table(plan, models)
    for length in plan.needle_lengths:
        columns = retrieval_columns(plan, length)
        yield build_score_table(f"Retrieval at {length:,} tokens: share of right answers", models, columns)
    if any(result.tokens for model in models for result in model.results):
        yield build_cost_table(plan, models)
    if any(len(model.results) > 1 for model in models):
        yield build_seed_table(plan, models)


def build_overview_table(plan: Plan, models: Sequence[Model]) -> Table:
    """Build a table with a row for each model: its state, the share of all needles found at each length, and nats per token."""
    longest = max(plan.needle_lengths)
    columns = {f"needles at {length:,}": (_needle_scores(plan, length), 2) for length in plan.needle_lengths}
    columns |= {f"nats at {length}": (scores, 3) for length, scores in text_columns(plan).items()}
    rows = []
    for model in models:
        mebibytes = f"{model.results[0].state_bytes[longest] / 2**20:,.1f}"
        rows.append((model.name, mebibytes, *(_format_cell(model, models[0], *column) for column in columns.values())))
    headers = ("", f"MiB at {longest:,}", *columns)
    return Table("State, needles and text", headers, tuple(rows), range(1, len(headers)))


def build_position_table(plan: Plan, models: Sequence[Model]) -> Table:
    """Build the table of nats per token in equal parts of the longest texts."""
    assert plan.text is not None
    longest = max(plan.text.lengths)
    bounds = np.linspace(0, longest, PARTS + 1).astype(int)
    headers = tuple(f"to {end:,}" for _, end in pairwise(bounds))
    rows = []
    for model in models:
        positions = [result.positions.get("perplexity", {}).get(longest) for result in model.results]
        if all(positions):
            curve = np.mean([[math.nan if value is None else value for value in values or ()] for values in positions], axis=0)
            rows.append((model.name, *(f"{np.nanmean(part):.3f}" for part in np.array_split(curve, PARTS))))
    title = f"Text of {longest:,} tokens: nats a token, by position"
    return Table(title, ("", *headers), tuple(rows), range(1, PARTS + 1))


def build_cost_table(plan: Plan, models: Sequence[Model]) -> Table:
    """Build the table of the sizes of states, and the tokens, times and losses of conversions."""
    longest = max(plan.needle_lengths)
    rows = []
    for model in models:
        result = model.results[0]
        steps = {step: seconds for step, seconds in result.seconds.items() if step in ("select", "build", "transfer", "finetune")}
        known = [seconds for seconds in steps.values() if seconds is not None]
        least = "" if len(known) == len(steps) else "more than "
        minutes = f"{least}{sum(known) / 60:,.1f}" if steps else "-"
        held_out = result.held_out.get("finetune after")
        loss = "-" if held_out is None else f"{held_out:.3f}"
        tokens = f"{sum(result.tokens.values()):,}" if result.tokens else "-"
        rows.append((model.name, f"{result.state_bytes[longest] / 2**20:,.2f}", tokens, minutes, loss))
    headers = ("", f"MiB of state at {longest:,} tokens", "tokens of training", "minutes", "held-out nats")
    return Table("Cost", headers, tuple(rows), range(1, len(headers)))


def build_seed_table(plan: Plan, models: Sequence[Model]) -> Table:
    """Build a table with a row for each seed of models with several: means differ by chance and by the machine."""
    columns = {"tasks of lm-eval": list(harness_columns(plan).values())}
    columns |= {f"nats at {length}": [scores] for length, scores in text_columns(plan).items()}
    columns |= {f"retrieval at {length:,}": list(retrieval_columns(plan, length).values()) for length in plan.needle_lengths}
    rows = []
    for model in models:
        for result in model.results if len(model.results) > 1 else ():
            means = [_mean_of_tasks([scores(result) for scores in group]) for group in columns.values()]
            cells = [
                "-" if mean is None else f"{mean:.{3 if name.startswith('nats') else 2}f}"
                for name, mean in zip(columns, means, strict=True)
            ]
            rows.append((f"{result.name}, seed {result.seed}", *cells, result.device))
    return Table("Seeds of one model", ("", *columns, "machine"), tuple(rows), range(1, len(columns) + 1))


def _mean_of_tasks(scores_by_task: Sequence[Sequence[float] | None]) -> float | None:
    """Return the mean of several tasks' means, or None if a task has no scores."""
    if not scores_by_task or any(scores is None for scores in scores_by_task):
        return None
    return float(np.mean([np.mean(scores or ()) for scores in scores_by_task]))


def draw(plan: Plan, models: Sequence[Model], target: Path, others: Sequence[Model] = ()) -> None:
    """Draw a panel for each length: the mean score of all retrieval tasks over the size of the state. Raises OSError.

    others: models of another plan, of which the same tasks are shown.
    """
    lengths = plan.needle_lengths
    with plotting() as pyplot:
        figure, axes = pyplot.subplots(1, len(lengths), figsize=(WIDTH, 3.4), sharey=True, layout="constrained", squeeze=False)
        for axis, length in zip(axes[0], lengths, strict=True):
            for index, (name, series) in enumerate(_series(plan, [*models, *others]).items()):
                _draw_series(axis, plan, name, series, index, length)
            axis.set(title=f"{length:,} tokens", xscale="log", xlim=(1, 130), ylim=(-0.04, 1.04), xlabel="MiB of state")
            axis.set_xticks(TICKS, [str(tick) for tick in TICKS])
            axis.minorticks_off()
            axis.grid(alpha=0.3)
        axes[0][0].set_ylabel("right answers")
        add_title(figure, "Needles found, by the size of the state: teacher and students")
        legend(figure, *axes[0], columns=4)
        save(figure, target)


def _series(plan: Plan, models: Sequence[Model]) -> dict[str, list[Model]]:
    """Return the models by the name of their line. Students without training whose key heads are chosen alike are one line, and one
    without kept key heads begins it. Those of other gates than the plan's are left out."""
    students = {student.name: student for student in plan.students}
    series: dict[str, list[Model]] = {}
    for model in models:
        student, name = students.get(model.name), model.name
        if student is not None and student.keep is not None and student.keep.gates is not None and student.keep.by != "restored":
            continue
        if student is not None and plan.gates is not None and not (student.transfer or student.finetune):
            name = CHOICES["gates" if student.keep is None else student.keep.by]
        series.setdefault(name, []).append(model)
    return series


def _draw_series(axis: Any, plan: Plan, name: str, models: Sequence[Model], index: int, length: int) -> None:
    points = []
    for model in models:
        rows = model.rows(_needle_scores(plan, length))
        if rows is not None:
            points.append((model.results[0].state_bytes[length] / 2**20, *mean_and_error(rows)))
    if not points:
        return
    sizes, means, errors = zip(*sorted(points), strict=True)
    colours = (*COLOURS[:-1], FAINT)  # the last one is black, as the teacher
    style = {"color": TEACHER if name == plan.baseline else colours[(index - 1) % len(colours)], "marker": marker(index)}
    axis.errorbar(sizes, means, yerr=errors, linestyle="-" if len(points) > 1 else "", capsize=2, label=label(name), **style)
