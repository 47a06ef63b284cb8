"""Pictures of a report. Of prefill, time and speed over the prompt (as LAWCAT's figure 4); of decode, speed and memory over the
position, and over the batch at the last position (as LoLCATs' figure 2).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from composer.benching.report import BenchCell, BenchReport
from composer.plotting import WIDTH, by_powers, colour, legend, line, marker, plotting, save, titled
from composer.plotting import label as named

MIB = 2**20
Quantity = Callable[[BenchCell], float | None]
Across = Callable[[BenchCell], int]


def draw(report: BenchReport, folder: Path) -> None:
    """Writes ``prefill.png`` and ``decode.png``, each where the report has such cells that did not fail. Raises OSError."""
    with plotting() as pyplot:
        for kind, make, says in (("prefill", _prefill, "Reading a prompt"), ("decode", _decode, "Writing, token by token")):
            if not any(cell.kind == kind and cell.median is not None for cell in report.cells):
                continue
            figure = make(report, pyplot)
            titled(figure, f"{says} ({report.setting.device_name}, {report.setting.device})")
            legend(figure, figure.axes[0], columns=4)
            save(figure, folder / f"{kind}.png")


def _prefill(report: BenchReport, pyplot: Any) -> Any:
    """A row a batch: milliseconds and tokens a second over the length of the prompt."""
    batches = report.setting.batches
    figure, axes = pyplot.subplots(len(batches), 2, figsize=(WIDTH, 3.2 * len(batches) + 0.6), squeeze=False, layout="constrained")
    for (time, rate), batch in zip(axes, batches, strict=True):
        cells = [cell for cell in report.cells if (cell.kind, cell.batch) == ("prefill", batch)]
        _lines(time, report, cells, _length, _milliseconds)
        time.set(title=f"prefill, batch {batch:,}", xlabel="tokens of the prompt", ylabel="milliseconds")
        by_powers(time)
        _lines(rate, report, cells, _length, lambda cell: cell.tokens_per_second)
        rate.set(title=f"prefill, batch {batch:,}", xlabel="tokens of the prompt", ylabel="tokens a second")
        by_powers(rate)
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
    figure, axes = pyplot.subplots(len(rows), 2, figsize=(WIDTH, 3.2 * len(rows) + 0.6), squeeze=False, layout="constrained")
    memory = "state, MiB" if setting.peak is None else "weights and peak, MiB"
    weights = {one.label: one.weight_bytes for one in setting.models}

    def taken(cell: BenchCell) -> float | None:
        if setting.peak is None:
            return None if cell.state_bytes is None else cell.state_bytes / MIB
        return None if cell.peak_bytes is None else (weights[cell.model] + cell.peak_bytes) / MIB

    for (rate, room), (title, label, own, across) in zip(axes, rows, strict=True):
        _lines(rate, report, own, across, lambda cell: cell.tokens_per_second)
        rate.set(title=title, xlabel=label, ylabel="tokens a second", ylim=(0, None))
        _lines(room, report, own, across, taken)
        room.set(title=title, xlabel=label, ylabel=memory)
        by_powers(room)
    return figure


def _lines(axis: Any, report: BenchReport, cells: Sequence[BenchCell], across: Across, up: Quantity) -> None:
    """A line a model, with a mark a cell; cells that ran out of memory are left out."""
    for index, model in enumerate(report.setting.models):
        points = [(across(cell), up(cell)) for cell in cells if cell.model == model.label and up(cell) is not None]
        look = {"color": colour(index), "linestyle": line(index), "marker": marker(index), "label": named(model.label)}
        axis.plot([x for x, _ in points], [y for _, y in points], **look)
    ticks = sorted({across(cell) for cell in cells})
    axis.set_xscale("log", base=2)
    axis.set_xticks(ticks, [f"{tick:,}" for tick in ticks], rotation=90 if len(ticks) > 5 else 0)
    axis.tick_params(axis="x", which="minor", bottom=False)


def _length(cell: BenchCell) -> int:
    return cell.length


def _batch(cell: BenchCell) -> int:
    return cell.batch


def _milliseconds(cell: BenchCell) -> float | None:
    return None if cell.median is None else 1e3 * cell.median
