"""The report of a bench as pictures.

They are, of prefill, time
and speed over the prompt (as LAWCAT's figure 4), and of decode, speed and memory over the position, and over the batch at the last
position (as LoLCATs' figure 2).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from composer.benching.report import BenchCell, BenchReport
from composer.reporting.plotting import add_title, by_powers, doubling_ticks, legend, look, panels

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

    for rate, room, (title, label, own, across) in zip(axes[::2], axes[1::2], rows, strict=True):
        _lines(rate, report, own, across, _tokens_per_second)
        rate.set(title=title, xlabel=label, ylabel="tokens a second", ylim=(0, None))
        _lines(room, report, own, across, mebibytes)
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
