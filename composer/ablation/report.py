"""What an ablation found: a row for each variant, the mean and the spread over seeds of every figure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args

from blocks.part import Closed
from composer.ablation.plan import Chain, Request
from composer.ablation.steps import FAILURE, Figures

Kind = Literal["mse", "divergence", "before", "after", "score"]


class Figure(Closed):
    """mean and, over two seeds or more, the standard deviation of a figure. values: one a seed."""

    mean: float
    spread: float | None
    values: tuple[float, ...]


class Column(Closed):
    """A figure that variants are compared by. length: of the samples, for the score of a task."""

    kind: Kind
    task: str | None = None
    length: int | None = None

    @property
    def title(self) -> str:
        """As a table has it."""
        return TITLES.get(self.kind) or f"{self.task} {self.length:,}"


TITLES = {
    "mse": "attention MSE",
    "divergence": "attention KL",
    "before": "perplexity before stage 2",
    "after": "perplexity",
}


class VariantReport(Closed):
    """values: what its row of the sweep says, by path. spec_hash: of what it means; seconds: of all its steps, over all seeds."""

    name: str
    values: dict[str, Any]
    spec: dict[str, Any]
    figures: dict[str, Figure]
    """By the title of a column."""
    failures: dict[int, str]
    """By seed."""
    seconds: float


class AblationReport(Closed):
    """All of it, and what it takes to run it again."""

    format: Literal[1] = 1
    request: dict[str, Any]
    columns: tuple[Column, ...]
    teacher_perplexity: float | None
    variants: tuple[VariantReport, ...]
    versions: dict[str, str]


def make_report(
    chains: Sequence[Chain], results: Mapping[str, Figures], request: Request, versions: Mapping[str, str]
) -> AblationReport:
    """From what the steps found, by their names."""
    found = {(chain.variant.name, chain.seed): _found(chain, results) for chain in chains}
    columns = list(dict.fromkeys(column for figures in found.values() for column in figures))
    columns.sort(key=lambda column: get_args(Kind).index(column.kind))
    variants = list({chain.variant.name: chain.variant for chain in chains}.values())
    teachers = [figures["teacher_loss"] for figures in results.values() if figures.get("teacher_loss") is not None]
    return AblationReport(
        request={key: value for key, value in vars(request).items() if key != "files"}
        | {name: str(path) for name, path in request.files.items()},
        columns=tuple(columns),
        teacher_perplexity=_perplexity(statistics.fmean(teachers)) if teachers else None,
        variants=tuple(
            VariantReport(
                name=variant.name,
                values=variant.values,
                spec=variant.spec.model_dump(mode="json", exclude_unset=True),
                figures={
                    column.title: _figure(values)
                    for column in columns
                    if (
                        values := [
                            found[variant.name, seed][column] for seed in request.seeds if column in found[variant.name, seed]
                        ]
                    )
                },
                failures={
                    chain.seed: figures[FAILURE]
                    for chain in chains
                    if chain.variant is variant and FAILURE in (figures := results[chain.steps[-1].name])
                },
                seconds=sum(
                    results[name].get("seconds", 0.0)
                    for name in {step.name for chain in chains if chain.variant is variant for step in chain.steps}
                ),
            )
            for variant in variants
        ),
        versions=dict(versions),
    )


def _found(chain: Chain, results: Mapping[str, Figures]) -> dict[Column, float]:
    """The figures of one variant and seed."""
    found: dict[Column, float] = {}
    for step in chain.steps:
        figures = results[step.name]
        if FAILURE in figures:
            break
        if step.kind == "compare":
            found[Column(kind="before")] = _perplexity(figures["loss"])
            layers = figures["layers"]
            found[Column(kind="mse")] = statistics.fmean(layer["mse"] for layer in layers)
            if all(layer["divergence"] is not None for layer in layers):
                found[Column(kind="divergence")] = statistics.fmean(layer["divergence"] for layer in layers)
        elif step.kind in ("finetune", "train") and figures["loss"] is not None:
            found[Column(kind="after")] = _perplexity(figures["loss"])
        elif step.kind == "evaluate":
            for cell in figures["cells"]:
                if cell["mean"] is not None:
                    found[Column(kind="score", task=cell["task"], length=cell["length"])] = cell["mean"]
    return found


def _perplexity(nats: float) -> float:
    return math.exp(min(nats, 700.0))


def _figure(values: Sequence[float]) -> Figure:
    spread = statistics.stdev(values) if len(values) > 1 else None
    return Figure(mean=statistics.fmean(values), spread=spread, values=tuple(values))
