"""Loaded models run the workloads of a bench in turn: each prompt, and each position at which a token is decoded."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from blocks.part import Closed
from composer.benching.memory import Gauge, unmeasured
from composer.benching.report import Measurement, Workload
from composer.benching.turns import NO_ROOM, in_turn
from composer.devices import NoRoom, room
from composer.errors import BenchError
from composer.model.cache import ComposedCache
from composer.model.cuda_graph import may_record

TOKENS, ROW = 8192, 1024
"""The most tokens of one call that fills a cache: of all rows, and of one row."""
RECORDED = 2
"""Steps before the first timed one: a warm-up, and the step that is recorded."""
IN_A_ROW = 8
"""Tokens that a model decodes before the next one has its turn: a light step right after a heavy one's would begin with the other's
data in the processor's caches, as no step of a text does."""
WARM = 8
"""Tokens of the calls before the first measurement, in which kernels and buffers are set up."""


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
        """The workloads, in the order in which they run."""
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
        """One pass over ``B T`` with an empty cache, and the logits of the last token; gives the cache."""
        return self._cache_of(self.model(ids, use_cache=True, logits_to_keep=1))

    def step(self, ids: Tensor) -> None:
        """One call on ``B T`` after what the cache has seen, and the logits of the last token."""
        self.cache = self._cache_of(self.model(ids, past_key_values=self.cache, use_cache=True, logits_to_keep=1))

    def _cache_of(self, answer: Any) -> Any:
        """Raises BenchError for a model that keeps what it has read elsewhere: how far it has read cannot be told."""
        cache = getattr(answer, "past_key_values", None)
        if cache is None:
            raise BenchError(
                f"{self.label}: {type(self.model).__name__} hands on no past_key_values, the cache that models are timed with. "
                "Leave it out."
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
    return sum(held.nbytes for layer in cache.layers for held in vars(layer).values() if isinstance(held, Tensor))


@torch.no_grad()
def warm(contestants: Sequence[Contestant], trial: Trial) -> None:
    """Let each model see a few tokens."""
    for one in contestants:
        one.step(trial.tokens(1, 0, WARM))
        one.step(trial.tokens(1, WARM, 1))
        one.clear()


@torch.no_grad()
def run_workload(
    contestants: Sequence[Contestant], workload: Workload, trial: Trial, gauge: Gauge = unmeasured
) -> dict[str, Measurement]:
    """The measurements of all models on one workload, by label. The first run of each measures memory, and is not timed."""
    settle = torch.cuda.synchronize if trial.device.startswith("cuda") else lambda: None
    try:
        with room():
            prompt = workload.kind == "prefill"
            ids = trial.tokens(workload.batch, 0, workload.length) if prompt else trial.tokens(workload.batch, workload.length, 1)
    except NoRoom:
        return {one.label: Measurement(failure=NO_ROOM) for one in contestants}
    runs = {one.label: partial(one.prefill if prompt else one.step, ids) for one in contestants}
    found = {one.label: _first(one, runs[one.label], ids, workload, trial, gauge) for one in contestants}
    left = {label: run for label, run in runs.items() if found[label].failure is None}
    rounds, row = (trial.repeats, 1) if prompt else (trial.steps, IN_A_ROW)
    seconds = in_turn(left, rounds, settle, row=row)
    for one in contestants:
        if one.label not in seconds:
            continue
        taken = seconds[one.label]
        if taken is None:
            one.full = not prompt
            found[one.label] = Measurement(failure=NO_ROOM)
        else:
            found[one.label] = found[one.label]._replace(seconds=tuple(taken))
    if any(one.failure is not None for one in found.values()):
        _free(contestants, trial)
    return found


def _first(one: Contestant, run: Callable[[], Any], ids: Tensor, workload: Workload, trial: Trial, gauge: Gauge) -> Measurement:
    """A measurement of state and peak memory, or of the failure."""
    if one.full:
        return Measurement(failure=NO_ROOM)
    try:
        with room():
            if workload.kind == "decode":
                one.reach(workload.length, workload.batch, trial)
            state = cache_bytes(one.cache)
            answer, peak = gauge(run, state)
            if workload.kind == "decode":
                one.record(ids)
            return Measurement(state_bytes=cache_bytes(answer) if workload.kind == "prefill" else state, peak_bytes=peak)
    except NoRoom:
        one.full = workload.kind == "decode"
        return Measurement(failure=NO_ROOM)


def _free(contestants: Sequence[Contestant], trial: Trial) -> None:
    """Free the caches of models that have run out of memory."""
    for one in contestants:
        if one.full:
            one.cache = None
    gc.collect()
    if trial.device.startswith("cuda"):
        torch.cuda.empty_cache()


def run_trial(
    contestants: Sequence[Contestant], trial: Trial, gauge: Gauge = unmeasured, tell: Callable[[Workload], object] = lambda _: None
) -> Iterator[tuple[Workload, dict[str, Measurement]]]:
    """Every workload, with the measurements of all models by label. tell: called with each workload as it begins."""
    batch = None
    for workload in trial.workloads():
        tell(workload)
        if workload.batch != batch:
            batch = workload.batch
            for one in contestants:
                one.clear()
        yield workload, run_workload(contestants, workload, trial, gauge)
