"""The report of an ablation as a table, for a terminal and for a page, and as a picture."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from composer.ablation.report import AblationReport, Column, Figure, VariantReport
from composer.files import whole
from composer.tables import markdown_table

MISSING = "–"
LONGEST = 40
"""Characters of a value of the sweep; the report has it whole."""


def cells(report: AblationReport) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Headers, and a row for each variant: its name, what the sweep says of it, and its figures."""
    paths = list(dict.fromkeys(path for variant in report.variants for path in variant.values))
    headers = ("variant", *paths, *(column.title for column in report.columns))
    return headers, [_row(variant, paths, report.columns) for variant in report.variants]


def markdown(report: AblationReport) -> str:
    """The table, what failed, and what the teacher reaches."""
    headers, rows = cells(report)
    first = len(headers) - len(report.columns)
    table = markdown_table(headers, rows, range(first, len(headers)))
    return "\n".join((table, "", *remarks(report))).rstrip() + "\n"


def remarks(report: AblationReport) -> list[str]:
    """What the table does not say."""
    said = []
    seeds = report.request["seeds"]
    if len(seeds) > 1:
        said.append(f"Means over {len(seeds)} seeds ({', '.join(map(str, seeds))}), ± the standard deviation.")
    said += _on_teachers(report)
    if report.request["data"]:
        said += [f"{variant.name}: nothing of it is trained." for variant in report.variants if not variant.trained]
    said += [f"{variant.name}, seed {seed}: {message}" for variant in report.variants for seed, message in variant.failures.items()]
    return said


def _on_teachers(report: AblationReport) -> list[str]:
    """One line where all variants have the same held-out rows, else one each."""
    known = {variant.name: variant.teacher_perplexity for variant in report.variants if variant.teacher_perplexity is not None}
    told = "The teacher's own perplexity on the held-out rows"
    if len(known) == len(report.variants) and len({_number(one) for one in known.values()}) == 1:
        return [f"{told} is {_number(next(iter(known.values())))}."]
    return [f"{told} of {name} is {_number(one)}." for name, one in known.items()]


def draw(report: AblationReport, target: Path) -> None:
    """Each column as a row of bars, a variant each, with its spread; nothing where there is no figure. A picture is there as a
    whole or not at all. Raises OSError."""
    if not report.columns:
        return
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    names = [variant.name for variant in report.variants]
    height = 0.6 + 0.3 * len(names)
    figure, axes = pyplot.subplots(
        len(report.columns), 1, figsize=(7, height * len(report.columns)), squeeze=False, layout="constrained"
    )
    for axis, column in zip(axes[:, 0], report.columns, strict=True):
        found = [variant.figures.get(column.title) for variant in report.variants]
        means = [0.0 if one is None else one.mean for one in found]
        axis.barh(names, means, xerr=[0.0 if one is None else one.spread or 0.0 for one in found], color="C0", alpha=0.8)
        axis.bar_label(axis.containers[-1], [_said(one) for one in found], padding=3, fontsize="small")
        axis.set_title(column.title, fontsize="medium", loc="left")
        axis.invert_yaxis()
        axis.margins(x=0.2)
        if column.kind == "score":
            axis.set_xlim(0, 1.25)
        elif min((one.mean for one in found if one is not None), default=1.0) * 20 < max(means):
            axis.set_xscale("log")
    with whole(target) as partial:
        figure.savefig(partial, dpi=120, format="png")
    pyplot.close(figure)


def _row(variant: VariantReport, paths: Sequence[str], columns: Sequence[Column]) -> tuple[str, ...]:
    values = [_cut(_value(variant.values[path])) if path in variant.values else MISSING for path in paths]
    return (variant.name, *values, *(_said(variant.figures.get(column.title)) for column in columns))


def _value(value: Any) -> str:
    """In a line, as YAML's flow style has it."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {_value(one)}" for key, one in value.items()) + "}"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"


def _said(figure: Figure | None) -> str:
    if figure is None:
        return MISSING
    return _number(figure.mean) + ("" if figure.spread is None else f" ± {_number(figure.spread)}")


def _number(value: float) -> str:
    return f"{value:.3g}" if value < 1000 else f"{value:.2e}"
