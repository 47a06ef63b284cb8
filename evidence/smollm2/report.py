"""Tables and the picture of a plan's results: means, their standard errors, and paired differences to the teacher."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from composer.plotting import TEACHER, WIDTH, add_title, label, legend, marker, plotting, save
from composer.tables import Table
from evidence.smollm2.plan import Plan
from evidence.smollm2.result import RUNS, Result, read_result

RESAMPLES = 2000
"""Resamples of a paired bootstrap."""
TICKS = (1, 3, 10, 30, 100)
"""MiB of state on the axis of the picture."""
PARTS = 8
"""Parts of a text in the table of positions. Each has several of an evaluation's buckets."""

Scores = Callable[[Result], Sequence[float] | None]
"""The scores of a task's rows in a result; None if it has none."""


@dataclass(frozen=True)
class Model:
    """A model of the plan, with the results of its seeds."""

    name: str
    results: tuple[Result, ...]

    def rows(self, scores: Scores) -> np.ndarray | None:
        """The score of each row, a mean over seeds. None where a seed has none."""
        found = [scores(result) for result in self.results]
        return None if any(one is None for one in found) else np.mean([list(one or ()) for one in found], axis=0)


def models_of(plan: Plan, kept: Path = RUNS) -> list[Model]:
    """The models that have results, the teacher first."""
    seeds = {plan.baseline: (0,)} | {student.name: student.seeds for student in plan.students}
    found = {name: [read_result(name, seed, kept) for seed in own] for name, own in seeds.items()}
    models = [Model(name, tuple(result for result in results if result is not None)) for name, results in found.items()]
    return [model for model in models if model.results]


def mean_and_error(rows: np.ndarray) -> tuple[float, float]:
    """The mean, and its standard error."""
    return float(rows.mean()), float(rows.std() / math.sqrt(len(rows)))


def difference(rows: np.ndarray, others: np.ndarray) -> tuple[float, float, float]:
    """The mean difference on the same rows, and the 95 % interval of a paired bootstrap."""
    drawn = np.random.default_rng(0).integers(0, len(rows), (RESAMPLES, len(rows)))
    means = (rows - others)[drawn].mean(axis=1)
    low, high = np.quantile(means, (0.025, 0.975))
    return float((rows - others).mean()), float(low), float(high)


def score_table(title: str, models: Sequence[Model], columns: dict[str, Scores], digits: int = 2) -> Table:
    """A row for each model and a column for each task: the mean ± its standard error. A star: the 95 % interval of the paired
    difference to the first model does not contain 0."""
    rows = []
    for model in models:
        cells = [_cell(model, models[0], scores, digits) for scores in columns.values()]
        rows.append((model.name, *cells))
    return Table(title, ("", *columns), tuple(rows), range(1, len(columns) + 1))


def _cell(model: Model, first: Model, scores: Scores, digits: int) -> str:
    own, others = model.rows(scores), first.rows(scores)
    if own is None:
        return "-"
    mean, error = mean_and_error(own)
    text = f"{mean:.{digits}f} ± {error:.{digits}f}"
    if model is first or others is None:
        return text
    _, low, high = difference(own, others)
    return f"{text} *" if low > 0 or high < 0 else text


def difference_table(title: str, models: Sequence[Model], columns: dict[str, Scores], digits: int = 2) -> Table:
    """A row for each student: the mean difference to the first model on the same rows, and its 95 % interval."""
    rows = []
    for model in models[1:]:
        cells = []
        for scores in columns.values():
            own, others = model.rows(scores), models[0].rows(scores)
            if own is None or others is None:
                cells.append("-")
                continue
            mean, low, high = difference(own, others)
            cells.append(f"{mean:+.{digits}f} [{low:+.{digits}f}, {high:+.{digits}f}]")
        rows.append((model.name, *cells))
    return Table(title, ("", *columns), tuple(rows), range(1, len(columns) + 1))


def harness_columns(plan: Plan) -> dict[str, Scores]:
    """A column for each task of lm-eval."""
    tasks = {name: task for one in (plan.general, plan.written) if one is not None for name, task in one.tasks.items()}
    return {name: _of_harness(name, task.metric) for name, task in tasks.items()}


def text_columns(plan: Plan) -> dict[str, Scores]:
    """A column for each length of the text: nats a token."""
    lengths = () if plan.text is None else plan.text.lengths
    return {f"{length:,}": _of_text(length) for length in lengths}


def retrieval_columns(plan: Plan, length: int) -> dict[str, Scores]:
    """A column for each retrieval task, at one length."""
    return {task: _of_retrieval(task, length) for task in plan.retrieval.tasks}


def _of_harness(task: str, metric: str) -> Scores:
    return lambda result: result.harness.get(task, {}).get(metric)


def _of_text(length: int) -> Scores:
    return lambda result: result.text.get("perplexity", {}).get(length)


def _of_retrieval(task: str, length: int) -> Scores:
    return lambda result: result.retrieval.get(task, {}).get(length)


def tables(plan: Plan, models: Sequence[Model]) -> Iterator[Table]:
    """The tables of a plan's results."""
    if harness := harness_columns(plan):
        yield score_table("Tasks of lm-eval: share of right answers", models, harness)
        yield difference_table("The same: paired differences to the teacher, with 95 % intervals", models, harness)
    if plan.text is not None:
        yield score_table("Text: nats a token, by the tokens of context", models, text_columns(plan), digits=3)
        yield position_table(plan, models)
    for length in plan.retrieval.lengths:
        columns = retrieval_columns(plan, length)
        yield score_table(f"Retrieval at {length:,} tokens: share of right answers", models, columns)
    yield cost_table(plan, models)
    if any(len(model.results) > 1 for model in models):
        yield seed_table(plan, models)


def position_table(plan: Plan, models: Sequence[Model]) -> Table:
    """Nats a token in equal parts of the longest texts."""
    assert plan.text is not None
    longest = max(plan.text.lengths)
    bounds = np.linspace(0, longest, PARTS + 1).astype(int)
    headers = tuple(f"to {end:,}" for _, end in pairwise(bounds))
    rows = []
    for model in models:
        positions = [result.positions.get("perplexity", {}).get(longest) for result in model.results]
        if all(positions):
            curve = np.mean([[math.nan if value is None else value for value in one or ()] for one in positions], axis=0)
            rows.append((model.name, *(f"{np.nanmean(part):.3f}" for part in np.array_split(curve, PARTS))))
    title = f"Text of {longest:,} tokens: nats a token, by position"
    return Table(title, ("", *headers), tuple(rows), range(1, PARTS + 1))


def cost_table(plan: Plan, models: Sequence[Model]) -> Table:
    """The bytes of a text's state, and the time of a conversion."""
    longest = max(plan.retrieval.lengths)
    rows = []
    for model in models:
        result = model.results[0]
        steps = {step: seconds for step, seconds in result.seconds.items() if step in ("select", "build", "transfer", "finetune")}
        known = [seconds for seconds in steps.values() if seconds is not None]
        least = "" if len(known) == len(steps) else "more than "
        minutes = f"{least}{sum(known) / 60:,.1f}" if steps else "-"
        held = result.held_out.get("finetune after")
        loss = "-" if held is None else f"{held:.3f}"
        tokens = f"{sum(result.tokens.values()):,}" if result.tokens else "-"
        rows.append((model.name, f"{result.state_bytes[longest] / 2**20:,.2f}", tokens, minutes, loss))
    headers = ("", f"MiB of state at {longest:,} tokens", "tokens of training", "minutes", "held-out nats")
    return Table("Cost", headers, tuple(rows), range(1, len(headers)))


def seed_table(plan: Plan, models: Sequence[Model]) -> Table:
    """A row for each seed of the models with several: how far means differ by chance and by the machine."""
    columns = {"tasks of lm-eval": list(harness_columns(plan).values())}
    columns |= {f"nats at {length}": [scores] for length, scores in text_columns(plan).items()}
    columns |= {f"retrieval at {length:,}": list(retrieval_columns(plan, length).values()) for length in plan.retrieval.lengths}
    rows = []
    for model in models:
        for result in model.results if len(model.results) > 1 else ():
            means = [_mean([scores(result) for scores in group]) for group in columns.values()]
            cells = [
                "-" if mean is None else f"{mean:.{3 if name.startswith('nats') else 2}f}"
                for name, mean in zip(columns, means, strict=True)
            ]
            rows.append((f"{result.name}, seed {result.seed}", *cells, result.device))
    return Table("Seeds of one model", ("", *columns, "machine"), tuple(rows), range(1, len(columns) + 1))


def _mean(found: Sequence[Sequence[float] | None]) -> float | None:
    """The mean of the means of several tasks; None where one has no scores."""
    if not found or any(one is None for one in found):
        return None
    return float(np.mean([np.mean(one or ()) for one in found]))


def draw(plan: Plan, models: Sequence[Model], target: Path) -> None:
    """A panel for each length: the mean score of all retrieval tasks over the bytes of state. Raises OSError."""
    lengths = plan.retrieval.lengths
    with plotting() as pyplot:
        figure, axes = pyplot.subplots(1, len(lengths), figsize=(WIDTH, 3.2), sharey=True, layout="constrained", squeeze=False)
        for axis, length in zip(axes[0], lengths, strict=True):
            for index, model in enumerate(models):
                _draw_model(axis, plan, model, index, length)
            axis.set(title=f"{length:,} tokens", xscale="log", xlim=(1, 130), ylim=(-0.04, 1.04), xlabel="MiB of state")
            axis.set_xticks(TICKS, [str(tick) for tick in TICKS])
            axis.minorticks_off()
            axis.grid(alpha=0.3)
        axes[0][0].set_ylabel("right answers")
        add_title(figure, "Needles found, by the size of the state: teacher and students")
        legend(figure, axes[0][0], columns=5)
        save(figure, target)


def _draw_model(axis: Any, plan: Plan, model: Model, index: int, length: int) -> None:
    found = [rows for scores in retrieval_columns(plan, length).values() if (rows := model.rows(scores)) is not None]
    if not found:
        return
    mean, error = mean_and_error(np.concatenate(found))
    bytes_ = model.results[0].state_bytes[length] / 2**20
    colour = TEACHER if model.name == plan.baseline else None
    look = {"color": colour} if colour else {}
    axis.errorbar(bytes_, mean, yerr=error, marker=marker(index), linestyle="", capsize=2, label=label(model.name), **look)
