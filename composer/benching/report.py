"""The results of a bench: a cell for each model, length and batch, and the settings to repeat it with."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

from blocks.part import Closed
from composer.graph.lowering import AUTO
from composer.reporting.tables import View, cell_at
from composer.runs.store import RunReport
from composer.weights.load import OpenedFacts

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
        from composer.benching.rendering import remarks, tables

        return View("", tuple(tables(self)), tuple(remarks(self)))

    def cell(self, model: str, kind: Phase, length: int, batch: int = 1) -> BenchCell:
        """Raise KeyError, which names the cells that there are."""
        return cell_at((model, kind, length, batch), {(cell.model, *cell.workload): cell for cell in self.cells})


def make_cells(workload: Workload, measured: Mapping[str, Measurement], peaks: Mapping[str, int | None]) -> list[BenchCell]:
    """Return the cells of one workload, from what was measured, by the models' labels, and peaks of memory that were measured
    apart."""
    first = next(iter(measured.values()))
    return [_cell(workload, label, own, first, peaks.get(label)) for label, own in measured.items()]


def _cell(workload: Workload, label: str, own: Measurement, first: Measurement, peak: int | None) -> BenchCell:
    seconds = own.seconds if own.failure is None else ()
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
        state_bytes=own.state_bytes,
        peak_bytes=own.peak_bytes if peak is None else peak,
        failure=own.failure,
    )


def _speed(first: Sequence[float], own: Sequence[float]) -> float | None:
    """Return the median of the ratios of runs: other work on the machine slows both runs of a round."""
    return statistics.median(before / after for before, after in zip(first, own, strict=True)) if own else None
