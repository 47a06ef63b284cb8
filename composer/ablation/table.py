"""The report of an ablation as a table, for a terminal and for a page."""

from __future__ import annotations

from collections.abc import Sequence

from composer.ablation.report import AblationReport, Column, Figure, VariantReport
from composer.escape import escape_markdown
from composer.spec.writing import said as value_in_a_line
from composer.tables import markdown_table

MISSING = "–"
LONGEST = 40
"""Characters of a value of the sweep; the report has it whole."""


def cells(report: AblationReport) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Headers, and a row for each variant: its name, its values of the sweep, its figures, and the paths of its models."""
    paths = list(dict.fromkeys(path for variant in report.variants for path in variant.values))
    headers = ("variant", *paths, *(column.title for column in report.columns))
    rows = [_row(variant, paths, report.columns) for variant in report.variants]
    if any(variant.models for variant in report.variants):
        headers = (*headers, "model")
        rows = [(*row, ", ".join(variant.models.values()) or MISSING) for row, variant in zip(rows, report.variants, strict=True)]
    return headers, rows


def figures_in(report: AblationReport) -> range:
    """The columns of the table that are figures."""
    first = 1 + len({path for variant in report.variants for path in variant.values})
    return range(first, first + len(report.columns))


def markdown(report: AblationReport) -> str:
    """The table, the failures, and the teacher's figures."""
    headers, rows = cells(report)
    table = markdown_table(headers, rows, figures_in(report))
    return "\n".join((table, "", *map(escape_markdown, remarks(report)))).rstrip() + "\n"


def remarks(report: AblationReport) -> list[str]:
    """Remarks below the table."""
    told = []
    seeds = report.request["seeds"]
    if len(seeds) > 1:
        told.append(f"Means over {len(seeds)} seeds ({', '.join(map(str, seeds))}), ± the standard deviation.")
    told += _on_teachers(report)
    if report.teacher:
        told.append(
            f"The teacher's own scores: {', '.join(f'{title} {number(score)}' for title, score in report.teacher.items())}."
        )
    if report.teacher_failure is not None:
        told.append(f"The teacher could not be scored: {report.teacher_failure.removesuffix('.')}.")
    if report.request["data"]:
        told += [f"{variant.name}: nothing of it is trained." for variant in report.variants if not variant.trained]
    told += [f"{variant.name}, seed {seed}: {message}" for variant in report.variants for seed, message in variant.failures.items()]
    return told


def _on_teachers(report: AblationReport) -> list[str]:
    """One line where all variants have the same held-out rows, else one each."""
    known = {variant.name: variant.teacher_perplexity for variant in report.variants if variant.teacher_perplexity is not None}
    told = "The teacher's own perplexity on the held-out rows"
    if len(known) == len(report.variants) and len({number(one) for one in known.values()}) == 1:
        return [f"{told} is {number(next(iter(known.values())))}."]
    return [f"{told} of {name} is {number(one)}." for name, one in known.items()]


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
