"""Loaded models run the workloads of a bench alternately: each prompt, and each position at which a token is decoded."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from blocks.part import Closed
from composer.benching.report import Measurement, Workload
from composer.errors import BenchError
from composer.model.cache import CACHE, ComposedCache
from composer.model.cuda_graph import may_record
from composer.system.devices import NoRoom, room

NO_ROOM = "out of memory"


def in_turn(
    runs: Mapping[str, Callable[[], object]],
    rounds: int,
    settle: Callable[[], object],
    clock: Callable[[], float] = time.perf_counter,
    row: int = 1,
) -> dict[str, list[float] | None]:
    """Return the seconds of each of ``rounds`` runs of every contestant; None for one that ran out of memory, which is then
    skipped.

    settle: waits until the device has finished. The result of a run is freed after timing. row: number of consecutive runs of a
    contestant before the next one runs.
    """
    seconds: dict[str, list[float] | None] = {name: [] for name in runs}
    for start in range(0, rounds, row):
        for name, run in runs.items():
            durations = seconds[name]
            if durations is None:
                continue
            try:
                with room():
                    for _ in range(min(row, rounds - start)):
                        durations.append(_seconds(run, settle, clock))
            except NoRoom:
                seconds[name] = None
            if seconds[name] is None:
                gc.collect()  # the error has been dropped, and with it the frames that held the run's tensors
    return seconds


def _seconds(run: Callable[[], object], settle: Callable[[], object], clock: Callable[[], float]) -> float:
    settle()
    began = clock()
    returned = run()
    settle()
    duration = clock() - began
    del returned  # not before: what it frees is no part of the run
    return duration


TOKENS, ROW = 8192, 1024
"""The most tokens of one call that fills a cache: of all rows, and of one row."""
RECORDED = 2
"""Steps before the first timed one: a warm-up, and the step that is recorded."""
IN_A_ROW = 8
"""Tokens that a model decodes before the next model runs. Directly after a heavy step of another model, the processor's caches hold
the other model's data, which does not happen inside a text."""
WARM = 8
"""Tokens of the calls before the first measurement, in which kernels and buffers are set up."""


Gauge = Callable[[Callable[[], Any], int], tuple[Any, int | None]]
"""Calls a function while a cache of so many bytes is held: what it returns, and the peak bytes of the two together."""


def run_unmeasured(run: Callable[[], Any], cache_bytes: int) -> tuple[Any, None]:
    return run(), None


class Trial(Closed):
    """The workloads of a bench, and their random tokens, of ids below ``vocabulary``. repeats, steps: runs that are timed."""

    prefill: tuple[int, ...]
    decode: tuple[int, ...]
    batches: tuple[int, ...]
    repeats: int
    steps: int
    seed: int
    vocabulary: int
    device: str

    def workloads(self) -> Iterator[Workload]:
        """Yield the workloads, in the order in which they run."""
        for batch in self.batches:
            yield from (Workload("prefill", length, batch) for length in self.prefill)
            yield from (Workload("decode", position, batch) for position in self.decode)

    def tokens(self, batch: int, start: int, count: int) -> Tensor:
        """Random ids ``B T``, those of the tokens from ``start`` on."""
        generator = torch.Generator().manual_seed(self.seed + start)
        return torch.randint(self.vocabulary, (batch, count), generator=generator).to(self.device)


class Contestant:
    """A model, and the cache that it decodes with."""

    def __init__(self, label: str, model: Any, *, graph: bool = False) -> None:
        self.label, self.model, self.graph = label, model, graph
        self.cache: Any = None
        self.full = False
        """Whether this batch has run out of memory: every later position needs more."""

    @property
    def seen(self) -> int:
        """Tokens of each row in the cache."""
        return 0 if self.cache is None else self.cache.get_seq_length()

    def clear(self) -> None:
        """Empty the cache for another batch."""
        self.cache, self.full = None, False

    def record(self, ids: Tensor) -> None:
        """Record a step of the cache, so that all later ones are replayed, where that is possible."""
        if not self.graph or not isinstance(self.cache, ComposedCache) or not may_record(self.model):
            return
        if self.cache.recorder is None:
            self.model.recording(self.cache)
        for _ in range(RECORDED):
            self.step(ids)

    def prefill(self, ids: Tensor) -> Any:
        """Run one pass over ``B T`` with an empty cache, with the logits of the last token. Return the cache."""
        return self._cache_of(self.model(ids, use_cache=True, logits_to_keep=1))

    def step(self, ids: Tensor) -> None:
        """One call on ``B T`` after what the cache has seen, and the logits of the last token."""
        self.cache = self._cache_of(self.model(ids, **{CACHE: self.cache}, use_cache=True, logits_to_keep=1))

    def _cache_of(self, result: Any) -> Any:
        """Raise BenchError for a model that keeps its state outside the cache: the number of tokens that it has read is then
        unknown."""
        cache = getattr(result, CACHE, None)
        if cache is None:
            raise BenchError(
                f"{self.label}: {type(self.model).__name__} returns no {CACHE}, the cache that models are timed with. Leave it out."
            )
        return cache

    def reach(self, position: int, batch: int, trial: Trial) -> None:
        """Fill the cache up to ``position`` tokens, in pieces; it is emptied before where it holds more."""
        if self.seen > position:
            self.cache = None
        while self.seen < position:
            count = min(ROW, max(1, TOKENS // batch), position - self.seen)
            self.step(trial.tokens(batch, self.seen, count))


def cache_bytes(cache: Any) -> int:
    """Bytes of all tensors that a cache holds: a composed model's states, or the keys, values and states of transformers' own."""
    if cache is None:
        return 0
    if isinstance(cache, ComposedCache):
        return cache.bytes()
    return sum(entry.nbytes for layer in cache.layers for entry in vars(layer).values() if isinstance(entry, Tensor))


@torch.no_grad()
def warm(contestants: Sequence[Contestant], trial: Trial) -> None:
    """Let each model see a few tokens."""
    for contestant in contestants:
        contestant.step(trial.tokens(1, 0, WARM))
        contestant.step(trial.tokens(1, WARM, 1))
        contestant.clear()


@torch.no_grad()
def run_workload(
    contestants: Sequence[Contestant], workload: Workload, trial: Trial, gauge: Gauge = run_unmeasured
) -> dict[str, Measurement]:
    """Return the measurements of all models on one workload, by label. The first run of each measures memory, and is not timed."""
    settle = torch.cuda.synchronize if trial.device.startswith("cuda") else lambda: None
    try:
        with room():
            prompt = workload.kind == "prefill"
            ids = trial.tokens(workload.batch, 0, workload.length) if prompt else trial.tokens(workload.batch, workload.length, 1)
    except NoRoom:
        return {contestant.label: Measurement(failure=NO_ROOM) for contestant in contestants}
    runs = {contestant.label: partial(contestant.prefill if prompt else contestant.step, ids) for contestant in contestants}
    measured = {
        contestant.label: _first(contestant, runs[contestant.label], ids, workload, trial, gauge) for contestant in contestants
    }
    running = {label: run for label, run in runs.items() if measured[label].failure is None}
    rounds, row = (trial.repeats, 1) if prompt else (trial.steps, IN_A_ROW)
    seconds = in_turn(running, rounds, settle, row=row)
    for contestant in contestants:
        if contestant.label not in seconds:
            continue
        durations = seconds[contestant.label]
        if durations is None:
            contestant.full = not prompt
            measured[contestant.label] = Measurement(failure=NO_ROOM)
        else:
            measured[contestant.label] = measured[contestant.label]._replace(seconds=tuple(durations))
    if any(contestant.failure is not None for contestant in measured.values()):
        _free(contestants, trial)
    return measured


def _first(
    contestant: Contestant, run: Callable[[], Any], ids: Tensor, workload: Workload, trial: Trial, gauge: Gauge
) -> Measurement:
    """Return a measurement of state and peak memory, or of the failure."""
    if contestant.full:
        return Measurement(failure=NO_ROOM)
    try:
        with room():
            if workload.kind == "decode":
                contestant.reach(workload.length, workload.batch, trial)
            state = cache_bytes(contestant.cache)
            result, peak = gauge(run, state)
            if workload.kind == "decode":
                contestant.record(ids)
            return Measurement(state_bytes=cache_bytes(result) if workload.kind == "prefill" else state, peak_bytes=peak)
    except NoRoom:
        contestant.full = workload.kind == "decode"
        return Measurement(failure=NO_ROOM)


def _free(contestants: Sequence[Contestant], trial: Trial) -> None:
    """Free the caches of models that have run out of memory."""
    for contestant in contestants:
        if contestant.full:
            contestant.cache = None
    gc.collect()
    if trial.device.startswith("cuda"):
        torch.cuda.empty_cache()


def run_trial(
    contestants: Sequence[Contestant],
    trial: Trial,
    gauge: Gauge = run_unmeasured,
    tell: Callable[[Workload], object] = lambda _: None,
) -> Iterator[tuple[Workload, dict[str, Measurement]]]:
    """Yield every workload, with the measurements of all models by label. tell: called with each workload at its start."""
    batch = None
    for workload in trial.workloads():
        tell(workload)
        if workload.batch != batch:
            batch = workload.batch
            for contestant in contestants:
                contestant.clear()
        yield workload, run_workload(contestants, workload, trial, gauge)
