"""The report as tables: the models, and one for each kind and batch, with a row for each length and model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

from composer.benching.report import PHASES, BenchCell, BenchReport, Phase
from composer.escape import escape_markdown
from composer.tables import Table
from composer.words import plural, size

Amount = TypeVar("Amount", int, float)
MISSING = "–"
OF: dict[Phase, str] = {
    "prefill": "one pass over a prompt of so many tokens",
    "decode": "one token after so many others",
}


def tables(report: BenchReport) -> Iterator[Table]:
    """The models, and one table for each kind and batch."""
    setting = report.setting
    models = tuple((one.label, f"{one.parameters:,}", size(one.weight_bytes), one.dtype, one.attention) for one in setting.models)
    yield Table(
        f"{setting.device_name} ({setting.device}), {plural(setting.threads, 'thread')}, backend {setting.backend}",
        ("model", "parameters", "weights", "dtype", "attention"),
        models,
        range(1, 3),
    )
    headers = ["model", "median", "fastest", "slowest", "tokens/s", "state"]
    if len(models) > 1:
        headers.insert(1, "speed")
    if setting.peak is not None:
        headers.append("peak")
    for kind in PHASES:
        for batch in setting.batches:
            rows = tuple(_row(cell, headers) for cell in report.cells if (cell.kind, cell.batch) == (kind, batch))
            if rows:
                title = f"{kind}, batch {batch:,}: {OF[kind]}" + (" of each row" if batch > 1 else "")
                yield Table(title, ("tokens", *headers), rows, range(2, len(headers) + 1))


def remarks(report: BenchReport) -> list[str]:
    """Remarks below the tables."""
    setting = report.setting
    said = []
    if len(setting.models) > 1:
        said.append(f"speed: how many times as fast as {setting.models[0].label}, the median of the ratios of runs of one turn.")
    if setting.device == "cpu":
        said.append("On a CPU, which does other things besides, only the speed counts: the models took turns, and suffered alike.")
    if setting.peak == "allocated":
        said.append("peak: the most that CUDA's tensors took in a run, the state included and the weights not.")
    if setting.peak == "resident":
        said.append("peak: the most that was resident in a run, in a process of its own, the state included and the weights not.")
    said += [f"{one.label} has an adapter that is not merged, which takes time." for one in setting.models if one.adapter]
    if len({one.dtype for one in setting.models}) > 1:
        said.append("The models do not compute in the same dtype: --dtype gives all of them one.")
    return [*said, *report.remarks]


def markdown(report: BenchReport) -> str:
    """All tables, for ``table.md``."""
    return "\n".join(table.markdown() for table in tables(report)) + "".join(
        f"\n{escape_markdown(remark)}\n" for remark in remarks(report)
    )


def seconds(count: float) -> str:
    """In words: 3.14 ms."""
    for unit, scale in (("s", 1.0), ("ms", 1e-3)):
        if count >= scale:
            return f"{_three(count / scale)} {unit}"
    return f"{_three(count / 1e-6)} µs"


def _row(cell: BenchCell, headers: list[str]) -> tuple[str, ...]:
    found = {
        "model": cell.model,
        "speed": _or_missing(cell.speed, lambda speed: f"{speed:.2f}×"),
        "median": cell.failure or _or_missing(cell.median, seconds),
        "fastest": _or_missing(cell.fastest, seconds),
        "slowest": _or_missing(cell.slowest, seconds),
        "tokens/s": _or_missing(cell.tokens_per_second, lambda rate: f"{rate:,.0f}" if rate >= 100 else _three(rate)),
        "state": _or_missing(cell.state_bytes, size),
        "peak": _or_missing(cell.peak_bytes, size),
    }
    return (f"{cell.length:,}", *(found[name] for name in headers))


def _or_missing(value: Amount | None, say: Callable[[Amount], str]) -> str:
    return MISSING if value is None else say(value)


def _three(number: float) -> str:
    """Three digits, or all before the point."""
    return f"{number:,.0f}" if number >= 100 else f"{number:.1f}" if number >= 10 else f"{number:.2f}"
