"""The results of an ablation: for each variant the mean and the spread of every figure over seeds."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args

from pydantic import Field

from blocks.part import Closed
from composer.ablation.options import Request
from composer.ablation.plan import STAGES, Chain, Variant
from composer.ablation.steps import FAILURE, Figures
from composer.options.classes import options_of
from composer.reporting.tables import Table, View
from composer.runs.store import RunReport
from composer.spec.explained import Explanation
from composer.spec.writing import format_value as value_in_a_line

MISSING = "–"
LONGEST = 40
"""Characters of a value of the sweep; the report has it whole."""

ColumnKind = Literal["before", "after", "mse", "divergence", "score", "perplexity"]
TITLES: dict[ColumnKind, str] = {
    "before": "perplexity before stage 2",
    "after": "perplexity",
    "mse": "attention MSE",
    "divergence": "attention KL",
}


class Figure(Closed):
    """mean and, over two seeds or more, the standard deviation of a figure (n - 1). values: one a seed that has it, by seed."""

    mean: float
    spread: float | None
    values: dict[int, float]


class Column(Closed):
    """A figure that variants are compared by. task, length (of its samples): of a task's score, or of the perplexity on it."""

    kind: ColumnKind
    task: str | None = None
    length: int | None = None

    @property
    def title(self) -> str:
        """The column's title in tables."""
        if self.length is None:
            return TITLES[self.kind]
        return f"{self.task} {self.length:,}" + (" perplexity" if self.kind == "perplexity" else "")


class VariantReport(Closed):
    """One variant."""

    name: str
    values: dict[str, Any]
    """What its row of the sweep sets, by path."""
    spec: dict[str, Any]
    spec_hash: str | None
    """The hash of the resolved spec."""
    trained: tuple[str, ...]
    """Its stages of training."""
    figures: dict[str, Figure]
    """Figures by the titles of columns."""
    teacher_perplexity: float | None
    """On the same held-out rows, a mean over seeds."""
    failures: dict[int, str]
    """Failures by seed."""
    seconds: float
    """The time of all steps over all seeds, those shared with other variants included."""
    models: dict[int, str] = Field(default_factory=dict)
    """The paths of its models in the folder, by seed, without failed ones. """
    state_bytes: int | None = None
    """Bytes of the state of one text, after ``state_length`` tokens."""
    kv_cache_bytes: int | None = None
    """Bytes of softmax attention's cache for the same text."""


class AblationReport(RunReport):
    """The whole ablation, with the request to repeat it with."""

    format: Literal[1] = 1
    request: dict[str, Any]
    columns: tuple[Column, ...]
    variants: tuple[VariantReport, ...]
    versions: dict[str, str]
    state_length: int | None = None
    """Tokens of the text of ``state_bytes``: the longest that the variants are scored on; None where they differ in that."""

    def view(self) -> View:
        return View("", (table(self),), tuple(remarks(self)))

    teacher: dict[str, float] = Field(default_factory=dict)
    """The teacher's own scores, by the titles of columns."""
    teacher_failure: str | None = None
    """Why scores of the teacher are missing."""

    @property
    def failed(self) -> bool:
        """Whether a step of any variant failed, with any seed."""
        return any(variant.failures for variant in self.variants)


def make_report(
    chains: Sequence[Chain],
    results: Mapping[str, Figures],
    request: Request,
    versions: Mapping[str, str],
    models: Mapping[str, Mapping[int, str]] | None = None,
    costs: Mapping[str, Explanation] | None = None,
) -> AblationReport:
    """Return the report of all steps' figures. results: by the steps' names. models: paths by variant and seed. costs: by
    variant."""
    costs = costs or {}
    lengths = {cost.sequence for cost in costs.values()}
    figures_by_chain = {(chain.variant.name, chain.seed): figures_of(chain, results) for chain in chains}
    columns = list(dict.fromkeys(column for figures in figures_by_chain.values() for column in figures))
    columns.sort(key=lambda column: get_args(ColumnKind).index(column.kind) if column.length is None else len(TITLES))
    variants = list({chain.variant.name: chain.variant for chain in chains}.values())
    reports = [
        _variant(variant, [chain for chain in chains if chain.variant is variant], results, figures_by_chain, columns)
        for variant in variants
    ]
    return AblationReport(
        request=json.loads(json.dumps({name: getattr(request, name) for name in options_of(Request)}, default=str)),
        columns=tuple(columns),
        variants=tuple(_place(report, (models or {}).get(report.name, {}), costs.get(report.name)) for report in reports),
        versions=dict(versions),
        state_length=lengths.pop() if len(lengths) == 1 else None,
    )


def _place(variant: VariantReport, models: Mapping[int, str], cost: Explanation | None) -> VariantReport:
    """Return the variant with the paths of its models and the bytes of their state."""
    state_sizes = {} if cost is None else {"state_bytes": cost.state_bytes, "kv_cache_bytes": cost.kv_cache_bytes}
    return variant.model_copy(update={"models": dict(models), **state_sizes})


def _variant(
    variant: Variant,
    chains: Sequence[Chain],
    results: Mapping[str, Figures],
    figures_by_chain: Mapping[tuple[str, int], Mapping[Column, float]],
    columns: Sequence[Column],
) -> VariantReport:
    steps = {step.name: results[step.name] for chain in chains for step in chain.steps}
    by_column = {
        column: {
            chain.seed: chain_figures[column]
            for chain in chains
            if column in (chain_figures := figures_by_chain[variant.name, chain.seed])
        }
        for column in columns
    }
    failures = {chain.seed: [why for step in chain.steps if (why := results[step.name].get(FAILURE))] for chain in chains}
    teacher = teacher_perplexity(steps)
    return VariantReport(
        name=variant.name,
        values=_as_json(variant.values),
        spec=variant.spec.model_dump(mode="json", exclude_unset=True),
        spec_hash=next((figures["spec_hash"] for figures in steps.values() if "spec_hash" in figures), None),
        trained=tuple(step.kind for step in chains[0].steps if step.kind in STAGES),
        figures={column.title: _figure(values) for column, values in by_column.items() if values},
        teacher_perplexity=teacher,
        failures={seed: "; ".join(dict.fromkeys(whys)) for seed, whys in failures.items() if whys},
        seconds=round(sum(figures.get("seconds", 0.0) for figures in steps.values()), 2),
    )


def figures_of(chain: Chain, results: Mapping[str, Figures]) -> dict[Column, float]:
    """Return the figures of one variant and seed. results: the figures of all steps, by the steps' names."""
    values: dict[Column, float] = {}
    learns = any(step.kind in ("finetune", "train") for step in chain.steps)
    for step in chain.steps:
        figures = results[step.name]
        if step.kind == "evaluate":
            values |= scores_in(figures)
        elif FAILURE in figures:
            continue
        elif step.kind == "compare":
            values |= _likeness(figures)
            if not learns and figures["loss"] is not None:
                values[Column(kind="after")] = _perplexity(figures["loss"])
        elif step.kind in ("finetune", "train") and figures["loss"] is not None:
            values[Column(kind="after")] = _perplexity(figures["loss"])
    return values


def teacher_perplexity(results: Mapping[str, Figures]) -> float | None:
    """On the held-out rows of these steps, if they had any."""
    losses = [figures["teacher_loss"] for figures in results.values() if figures.get("teacher_loss") is not None]
    return _perplexity(statistics.fmean(losses)) if losses else None


def _likeness(figures: Figures) -> dict[Column, float]:
    layers = figures["layers"]
    values: dict[Column, float] = {}
    values[Column(kind="mse")] = statistics.fmean(layer["mse"] for layer in layers)
    if all(layer["divergence"] is not None for layer in layers):
        values[Column(kind="divergence")] = statistics.fmean(layer["divergence"] for layer in layers)
    if figures["loss"] is not None:
        values[Column(kind="before")] = _perplexity(figures["loss"])
    return values


def scores_in(figures: Figures) -> dict[Column, float]:
    """Return the scores of a step, without those of failed cells."""
    values: dict[Column, float] = {}
    for cell in figures.get("cells", ()):
        if cell["mean"] is not None and cell["scored"] == "loss":
            values[Column(kind="perplexity", task=cell["task"], length=cell["length"])] = _perplexity(cell["mean"])
        elif cell["mean"] is not None:
            values[Column(kind="score", task=cell["task"], length=cell["length"])] = cell["mean"]
    return values


def _as_json(value: Any) -> Any:
    return json.loads(json.dumps(value))


def _perplexity(nats: float) -> float:
    """Return the value, limited to the largest finite number."""
    return math.exp(min(nats, 700.0))


def _figure(values: Mapping[int, float]) -> Figure:
    numbers = list(values.values())
    spread = statistics.stdev(numbers) if len(numbers) > 1 else None
    return Figure(mean=statistics.fmean(numbers), spread=spread, values=dict(values))


def table(report: AblationReport) -> Table:
    """Return a row for each variant: its name, its values of the sweep, its figures, and the paths of its models."""
    paths = list(dict.fromkeys(path for variant in report.variants for path in variant.values))
    headers = ("variant", *paths, *(column.title for column in report.columns))
    rows = [_row(variant, paths, report.columns) for variant in report.variants]
    if any(variant.models for variant in report.variants):
        headers = (*headers, "model")
        rows = [(*row, ", ".join(variant.models.values()) or MISSING) for row, variant in zip(rows, report.variants, strict=True)]
    first = 1 + len(paths)
    return Table("", headers, tuple(rows), range(first, first + len(report.columns)))


def remarks(report: AblationReport) -> list[str]:
    """Remarks below the table."""
    lines = []
    seeds = report.request["seeds"]
    if len(seeds) > 1:
        lines.append(f"Means over {len(seeds)} seeds ({', '.join(map(str, seeds))}), ± the standard deviation.")
    lines += _on_teachers(report)
    if report.teacher:
        lines.append(
            f"The teacher's own scores: {', '.join(f'{title} {number(score)}' for title, score in report.teacher.items())}."
        )
    if report.teacher_failure is not None:
        lines.append(f"The teacher could not be scored: {report.teacher_failure.removesuffix('.')}.")
    if report.request["data"]:
        lines += [f"{variant.name}: nothing of it is trained." for variant in report.variants if not variant.trained]
    lines += [
        f"{variant.name}, seed {seed}: {message}" for variant in report.variants for seed, message in variant.failures.items()
    ]
    return lines


def _on_teachers(report: AblationReport) -> list[str]:
    """Return one line where all variants have the same held-out rows, else one each."""
    perplexities = {
        variant.name: variant.teacher_perplexity for variant in report.variants if variant.teacher_perplexity is not None
    }
    subject = "The teacher's own perplexity on the held-out rows"
    if len(perplexities) == len(report.variants) and len({number(perplexity) for perplexity in perplexities.values()}) == 1:
        return [f"{subject} is {number(next(iter(perplexities.values())))}."]
    return [f"{subject} of {name} is {number(perplexity)}." for name, perplexity in perplexities.items()]


def _row(variant: VariantReport, paths: Sequence[str], columns: Sequence[Column]) -> tuple[str, ...]:
    values = [cut(value_in_a_line(variant.values[path])) if path in variant.values else MISSING for path in paths]
    return (variant.name, *values, *(figure_text(variant.figures.get(column.title)) for column in columns))


def cut(text: str) -> str:
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"


def figure_text(figure: Figure | None) -> str:
    if figure is None:
        return MISSING
    return number(figure.mean) + ("" if figure.spread is None else f" ± {number(figure.spread)}")


def number(value: float) -> str:
    return f"{value:.3g}" if value < 1000 else f"{value:.2e}"
