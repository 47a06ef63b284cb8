"""The results of a bench: a cell for each model, length and batch, the settings to repeat it with, and its tables.

The tables are the models, and one for each kind and batch, with a row for each length and model.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeVar

from blocks.part import Closed
from composer.graph.lowering import AUTO
from composer.reporting.plotting import add_title, by_powers, doubling_ticks, legend, look, panels
from composer.reporting.tables import Table, View, cell_at
from composer.reporting.words import plural, size
from composer.runs.store import RunReport
from composer.weights.opened import OpenedFacts

Amount = TypeVar("Amount", int, float)
MISSING = "–"
OF: dict[Phase, str] = {
    "prefill": "one pass over a prompt of so many tokens",
    "decode": "one token after so many others",
}

Phase = Literal["prefill", "decode"]
PHASES: tuple[Phase, ...] = ("prefill", "decode")


class Workload(NamedTuple):
    """A workload of all models. length: tokens of the prompt, or tokens before the decoded one."""

    kind: Phase
    length: int
    batch: int

    @property
    def description(self) -> str:
        """The workload for people, such as ``prefill 1,024 × 4``."""
        return f"{self.kind} {self.length:,}" + (f" × {self.batch:,}" if self.batch > 1 else "")


class Measurement(NamedTuple):
    """The result of one model on one workload: the seconds of each timed run, in order, and bytes as in ``BenchCell``."""

    seconds: tuple[float, ...] = ()
    state_bytes: int | None = None
    peak_bytes: int | None = None
    failure: str | None = None


class BenchCell(Closed):
    """One model at one length with one batch."""

    model: str
    kind: Phase
    length: int
    batch: int
    seconds: tuple[float, ...]
    """The seconds of each timed run: a pass over the prompt, or one token of each row. Empty where the cell failed."""
    median: float | None
    fastest: float | None
    slowest: float | None
    tokens_per_second: float | None
    """Tokens of all rows together, by the median of seconds."""
    speed: float | None
    """How many times as fast as the first model: the median over runs of its seconds over this one's."""
    state_bytes: int | None
    """Bytes of the state of the whole batch, after ``length`` tokens."""
    peak_bytes: int | None
    """The largest memory of a run without the weights, the state included. None if it was not measured."""
    failure: str | None = None
    """Why there is no result, such as ``out of memory``."""

    @property
    def workload(self) -> Workload:
        return Workload(self.kind, self.length, self.batch)


class TimedModelFacts(OpenedFacts):
    """A model, and how it was loaded. attention: transformers' name of the implementation, or ``composed``."""

    parameters: int
    weight_bytes: int
    attention: str
    adapter: bool
    """Whether an adapter is applied at every call. This is slower until it is merged."""


class BenchSetting(Closed):
    """The settings of a bench. peak: how memory is measured, None where it is not."""

    models: tuple[TimedModelFacts, ...]
    prefill: tuple[int, ...]
    decode: tuple[int, ...]
    batches: tuple[int, ...]
    repeats: int
    steps: int
    seed: int
    device: str
    backend: str = AUTO
    """Which forms ran the heads of built models."""
    graph: bool = False
    """Whether steps of decode were recorded and replayed, where they can be."""
    device_name: str
    threads: int
    peak: Literal["allocated", "resident"] | None
    versions: dict[str, str]


class BenchReport(RunReport):
    """The whole bench, as ``bench.json`` has it. remarks: on events that no cell shows."""

    format: Literal[1] = 1
    setting: BenchSetting
    cells: tuple[BenchCell, ...]
    remarks: tuple[str, ...] = ()

    def view(self) -> View:
        return View("", tuple(tables(self)), tuple(remarks(self)))

    def cell(self, model: str, kind: Phase, length: int, batch: int = 1) -> BenchCell:
        """Raise KeyError, which names the cells that there are."""
        return cell_at((model, kind, length, batch), {(cell.model, *cell.workload): cell for cell in self.cells})


def make_cells(workload: Workload, measured: Mapping[str, Measurement], peaks: Mapping[str, int | None]) -> list[BenchCell]:
    """Return the cells of one workload, from what was measured, by the models' labels, and peaks of memory that were measured
    apart."""
    first = next(iter(measured.values()))
    return [_cell(workload, label, measurement, first, peaks.get(label)) for label, measurement in measured.items()]


def _cell(workload: Workload, label: str, measurement: Measurement, first: Measurement, peak: int | None) -> BenchCell:
    seconds = measurement.seconds if measurement.failure is None else ()
    median = statistics.median(seconds) if seconds else None
    tokens = workload.batch * (workload.length if workload.kind == "prefill" else 1)
    return BenchCell(
        model=label,
        **workload._asdict(),
        seconds=seconds,
        median=median,
        fastest=min(seconds, default=None),
        slowest=max(seconds, default=None),
        tokens_per_second=tokens / median if median else None,
        speed=_speed(first.seconds, seconds) if first.failure is None else None,
        state_bytes=measurement.state_bytes,
        peak_bytes=measurement.peak_bytes if peak is None else peak,
        failure=measurement.failure,
    )


def _speed(first_seconds: Sequence[float], seconds: Sequence[float]) -> float | None:
    """Return the median of the ratios of runs: other work on the machine slows both runs of a round."""
    return statistics.median(before / after for before, after in zip(first_seconds, seconds, strict=True)) if seconds else None


def tables(report: BenchReport) -> Iterator[Table]:
    """Yield the models, and one table for each kind and batch."""
    setting = report.setting
    models = tuple(
        (model.label, f"{model.parameters:,}", size(model.weight_bytes), model.dtype, model.attention) for model in setting.models
    )
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
    lines = []
    if len(setting.models) > 1:
        lines.append(
            f"speed: how many times as fast as {setting.models[0].label}, the median of the ratios of runs in the same round."
        )
    if setting.device == "cpu":
        lines.append(
            "On a CPU, compare the speeds, not the times: other processes run beside the models, which alternate and so "
            "are slowed alike."
        )
    if setting.peak == "allocated":
        lines.append("peak: the most memory that CUDA tensors used in a run, with the state and without the weights.")
    if setting.peak == "resident":
        lines.append("peak: the most resident memory of a run in a separate process, with the state and without the weights.")
    lines += [
        f"{model.label} has an adapter that is not merged, which makes it slower." for model in setting.models if model.adapter
    ]
    if len({model.dtype for model in setting.models}) > 1:
        lines.append("The models do not compute in the same dtype. --dtype sets one for all.")
    return [*lines, *report.remarks]


def seconds(count: float) -> str:
    """In words: 3.14 ms."""
    for unit, scale in (("s", 1.0), ("ms", 1e-3)):
        if count >= scale:
            return f"{_three(count / scale)} {unit}"
    return f"{_three(count / 1e-6)} µs"


def _row(cell: BenchCell, headers: list[str]) -> tuple[str, ...]:
    texts = {
        "model": cell.model,
        "speed": _or_missing(cell.speed, lambda speed: f"{speed:.2f}×"),
        "median": cell.failure or _or_missing(cell.median, seconds),
        "fastest": _or_missing(cell.fastest, seconds),
        "slowest": _or_missing(cell.slowest, seconds),
        "tokens/s": _or_missing(cell.tokens_per_second, lambda rate: f"{rate:,.0f}" if rate >= 100 else _three(rate)),
        "state": _or_missing(cell.state_bytes, size),
        "peak": _or_missing(cell.peak_bytes, size),
    }
    return (f"{cell.length:,}", *(texts[name] for name in headers))


def _or_missing(value: Amount | None, format_value: Callable[[Amount], str]) -> str:
    return MISSING if value is None else format_value(value)


def _three(number: float) -> str:
    """Three digits, or all before the point."""
    return f"{number:,.0f}" if number >= 100 else f"{number:.1f}" if number >= 10 else f"{number:.2f}"


# Pictures: of prefill, time and speed over the prompt (as LAWCAT's figure 4), and of decode, speed and memory over the position,
# and over the batch at the last position (as LoLCATs' figure 2).


MIB = 2**20
Quantity = Callable[[BenchCell], float | None]
Across = Callable[[BenchCell], int]


def pictures(report: BenchReport, pyplot: Any) -> Iterator[tuple[str, Any]]:
    """Yield a picture for each kind of workload that has a cell which did not fail."""
    for kind, draw, title in (("prefill", _prefill, "Reading a prompt"), ("decode", _decode, "Writing, token by token")):
        if any(cell.kind == kind and cell.median is not None for cell in report.cells):
            figure = draw(report, pyplot)
            add_title(figure, f"{title} ({report.setting.device_name}, {report.setting.device})")
            legend(figure, figure.axes[0], columns=4)
            yield kind, figure


def _prefill(report: BenchReport, pyplot: Any) -> Any:
    """Return a row a batch: milliseconds and tokens a second over the length of the prompt."""
    batches = report.setting.batches
    figure, axes = panels(pyplot, 2 * len(batches), height=3.2, across=2, margin=0.6)
    for time, rate, batch in zip(axes[::2], axes[1::2], batches, strict=True):
        cells = [cell for cell in report.cells if (cell.kind, cell.batch) == ("prefill", batch)]
        for axis, quantity, label in ((time, _milliseconds, "milliseconds"), (rate, _tokens_per_second, "tokens a second")):
            _lines(axis, report, cells, _length, quantity)
            axis.set(title=f"prefill, batch {batch:,}", xlabel="tokens of the prompt", ylabel=label)
            by_powers(axis)
    return figure


def _decode(report: BenchReport, pyplot: Any) -> Any:
    """Over the position in the first row, with the smallest batch; over the batch in a second one, where there are several."""
    setting = report.setting
    cells = [cell for cell in report.cells if cell.kind == "decode"]
    first, last = setting.batches[0], setting.decode[-1]
    rows: list[tuple[str, str, list[BenchCell], Across]] = [
        (f"decode, batch {first:,}", "tokens before", [cell for cell in cells if cell.batch == first], _length)
    ]
    if len(setting.batches) > 1:
        rows.append((f"decode after {last:,} tokens", "batch", [cell for cell in cells if cell.length == last], _batch))
    figure, axes = panels(pyplot, 2 * len(rows), height=3.2, across=2, margin=0.6)
    memory = "state, MiB" if setting.peak is None else "weights and peak, MiB"
    weights = {model.label: model.weight_bytes for model in setting.models}

    def mebibytes(cell: BenchCell) -> float | None:
        if setting.peak is None:
            return None if cell.state_bytes is None else cell.state_bytes / MIB
        return None if cell.peak_bytes is None else (weights[cell.model] + cell.peak_bytes) / MIB

    for rate, room, (title, label, labels, across) in zip(axes[::2], axes[1::2], rows, strict=True):
        _lines(rate, report, labels, across, _tokens_per_second)
        rate.set(title=title, xlabel=label, ylabel="tokens a second", ylim=(0, None))
        _lines(room, report, labels, across, mebibytes)
        room.set(title=title, xlabel=label, ylabel=memory)
        by_powers(room)
    return figure


def _lines(axis: Any, report: BenchReport, cells: Sequence[BenchCell], across: Across, up: Quantity) -> None:
    """A line a model, with a mark a cell; cells that ran out of memory are left out."""
    for index, model in enumerate(report.setting.models):
        points = [(across(cell), up(cell)) for cell in cells if cell.model == model.label and up(cell) is not None]
        axis.plot([x for x, _ in points], [y for _, y in points], **look(index, model.label))
    doubling_ticks(axis, sorted({across(cell) for cell in cells}), upright=5)


def _length(cell: BenchCell) -> int:
    return cell.length


def _batch(cell: BenchCell) -> int:
    return cell.batch


def _tokens_per_second(cell: BenchCell) -> float | None:
    return cell.tokens_per_second


def _milliseconds(cell: BenchCell) -> float | None:
    return None if cell.median is None else 1e3 * cell.median
