"""What a bench finds: a cell for each model, length and batch, and all that it takes to run it again."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

from blocks.part import Closed
from composer.graph.lowering import AUTO
from composer.weights.opened import OpenedFacts

Kind = Literal["prefill", "decode"]
KINDS: tuple[Kind, ...] = ("prefill", "decode")


class Place(NamedTuple):
    """What all models are measured at together. length: tokens of the prompt, or those before the one that is decoded."""

    kind: Kind
    length: int
    batch: int

    @property
    def said(self) -> str:
        """In words: ``prefill 1,024 × 4``."""
        return f"{self.kind} {self.length:,}" + (f" × {self.batch:,}" if self.batch > 1 else "")


class Measured(NamedTuple):
    """What one model did at one place. seconds: of each run that counts, in the order of the rounds; bytes as ``Cell`` has them."""

    seconds: tuple[float, ...] = ()
    state_bytes: int | None = None
    peak_bytes: int | None = None
    failure: str | None = None


class Cell(Closed):
    """One model at one length with one batch."""

    model: str
    kind: Kind
    length: int
    batch: int
    seconds: tuple[float, ...]
    """Of each run that counts: a pass over the prompt, or one token of each row. Empty where the cell failed."""
    median: float | None
    fastest: float | None
    slowest: float | None
    tokens_per_second: float | None
    """Of all rows together, at the median."""
    speed: float | None
    """How many times as fast as the first model: the median over rounds of its seconds over this one's."""
    state_bytes: int | None
    """Of the whole batch, after ``length`` tokens."""
    peak_bytes: int | None
    """The most that a run took beside the weights, its state included. None where it was not measured."""
    failure: str | None = None
    """Why there is no result, such as ``out of memory``."""

    @property
    def place(self) -> Place:
        return Place(self.kind, self.length, self.batch)


class ModelFacts(OpenedFacts):
    """A model, and how it was loaded. attention: what computes it, transformers' name for it or ``composed``."""

    parameters: int
    weight_bytes: int
    attention: str
    adapter: bool
    """Whether an adapter is applied at every call, which takes time until it is merged."""


class Setting(Closed):
    """All that decides what is run. peak: how memory is measured, None where it is not."""

    models: tuple[ModelFacts, ...]
    prefill: tuple[int, ...]
    decode: tuple[int, ...]
    batches: tuple[int, ...]
    repeats: int
    steps: int
    seed: int
    device: str
    backend: str = AUTO
    """Which forms ran the heads of built models."""
    device_name: str
    threads: int
    peak: Literal["allocated", "resident"] | None
    versions: dict[str, str]


class Report(Closed):
    """The whole bench, as ``bench.json`` has it. remarks: what became of it that no cell says."""

    format: Literal[1] = 1
    setting: Setting
    cells: tuple[Cell, ...]
    remarks: tuple[str, ...] = ()

    def cell(self, model: str, kind: Kind, length: int, batch: int = 1) -> Cell:
        """Raises KeyError."""
        for cell in self.cells:
            if (cell.model, cell.place) == (model, (kind, length, batch)):
                return cell
        raise KeyError((model, kind, length, batch))


def make_cells(place: Place, measured: Mapping[str, Measured], peaks: Mapping[str, int | None]) -> list[Cell]:
    """The cells of one place. measured: by the models' labels, the first one first. peaks: those that were measured elsewhere."""
    first = next(iter(measured.values()))
    return [_cell(place, label, one, first, peaks.get(label)) for label, one in measured.items()]


def _cell(place: Place, label: str, own: Measured, first: Measured, peak: int | None) -> Cell:
    seconds = own.seconds if own.failure is None else ()
    median = statistics.median(seconds) if seconds else None
    tokens = place.batch * (place.length if place.kind == "prefill" else 1)
    return Cell(
        model=label,
        **place._asdict(),
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
    """Round by round: whatever else the machine did then hurt both."""
    return statistics.median(one / other for one, other in zip(first, own, strict=True)) if own else None
