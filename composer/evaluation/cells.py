"""The results of an evaluation: samples, and a cell for each model, task and length."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, NamedTuple

from pydantic import Field, model_validator

from blocks.part import Closed
from composer.system.json_files import Count, Elapsed, Measured
from composer.tasks.base import Scored

BUCKETS = 64
"""The number of parts of a window whose losses are reported apart; fewer where it has fewer tokens."""
Z = 1.959964
"""Standard deviations of a normal variable on either side of its mean that hold 95 % of it."""
DEPTHS = 10
"""Parts of a haystack that needles are counted in."""


class CellKey(NamedTuple):
    """One cell of the table: labels of a model and of a task, and a length in tokens."""

    model: str
    task: str
    length: int


class SampleResult(Closed):
    """The result of one sample. index: of the sample in its task, from 0."""

    index: Count
    score: Measured
    """0 to 1, the higher the better; of a task that is scored by loss, nats per token."""
    tokens: Count
    """Tokens of the whole sample, BOS and answer included."""
    depth: Annotated[float, Field(ge=0, le=1)] | None = None
    """Share of the haystack before the needle."""
    answers: tuple[str, ...] | None = None
    written: str | None = None
    """What the model wrote after the prompt, up to EOS."""
    nats: Annotated[tuple[Measured | None, ...], Field(max_length=BUCKETS)] | None = None
    """Mean nats per token in each part of the window; None where nothing in it is predicted."""
    seconds: Elapsed
    """The sample's share of its batch's time."""


class LoggedSample(SampleResult):
    """A line of the log of samples: a sample's result and its cell."""

    model: str
    task: str
    length: Count

    @property
    def key(self) -> CellKey:
        return CellKey(self.model, self.task, self.length)

    @property
    def result(self) -> SampleResult:
        return SampleResult(**{name: getattr(self, name) for name in SampleResult.model_fields})


class DepthBin(Closed):
    """Samples with a needle between two depths."""

    start: Measured
    end: Measured
    mean: Measured
    samples: Count


class PositionBin(Closed):
    """Tokens from one position (from 0) up to another, and their mean nats over the samples."""

    start: Count
    end: Count
    nats: Measured


class EvaluationCell(Closed):
    """One model on one task at one length."""

    model: str
    task: str
    length: Count
    scored: Scored
    mean: Measured | None
    """The mean of the samples' scores, each sample counting the same. None where the cell failed."""
    standard_error: Measured | None
    """√(Σ (score - mean)²) / samples: for scores of 0 and 1 the binomial √(p (1 - p) / n), else what a bootstrap of the mean tends
    to. None for a single sample."""
    interval: tuple[Measured, Measured] | None = None
    """The 95 % interval of the mean over all samples that the task could draw, from ``interval_of``. None where the cell failed."""
    nats: Measured | None = None
    """Mean nats per token, for a task that is scored by loss."""
    perplexity: float | None = None
    """exp(nats)."""
    samples: Count
    seconds: Elapsed
    failure: str | None = None
    """The reason why there is no result, such as ``out of memory``."""
    by_depth: tuple[DepthBin, ...] = ()
    by_position: tuple[PositionBin, ...] = ()

    @model_validator(mode="after")
    def _is_possible(self) -> EvaluationCell:
        if self.mean is not None and not self.samples:
            raise ValueError("a mean of 0 samples")
        if self.mean is not None and self.scored != "loss" and not 0 <= self.mean <= 1:
            raise ValueError(f"expected a mean from 0 to 1, got {self.mean:g}")
        return self

    @property
    def key(self) -> CellKey:
        return CellKey(self.model, self.task, self.length)


def make_cell(key: CellKey, scored: Scored, judged: Sequence[SampleResult], failure: str | None = None) -> EvaluationCell:
    """Return the cell of some samples; a failed one has their number, and no other figures."""
    seconds = round(sum(result.seconds for result in judged), 3)
    common: Mapping[str, Any] = {**key._asdict(), "scored": scored, "samples": len(judged), "seconds": seconds}
    if failure is not None:
        return EvaluationCell(**common, mean=None, standard_error=None, failure=failure)
    scores = [result.score for result in judged]
    mean = math.fsum(scores) / len(scores)
    spread = math.fsum((score - mean) ** 2 for score in scores)
    error = math.sqrt(spread) / len(scores) if len(scores) > 1 else None
    return EvaluationCell(
        **common,
        mean=mean,
        standard_error=error,
        interval=interval_of(scored, mean, error, len(scores)),
        nats=mean if scored == "loss" else None,
        perplexity=_exp(mean) if scored == "loss" else None,
        by_depth=_by_depth(judged),
        by_position=_by_position(key.length, judged),
    )


def interval_of(scored: Scored, mean: float, error: float | None, samples: int) -> tuple[float, float] | None:
    """Return the 95 % interval of the mean over all samples that the task could draw; None where it is unknown. error: the mean's
    standard error.

    For shares: Wilson's interval, for as many samples with scores of 0 or 1 as would have this standard error. Where all scores are
    0 or 1, that is all samples, else more. For 0 right in 10 it is 0 to 0.278. For a loss: mean ± 1.96 errors.
    """
    if scored == "loss":
        return None if error is None else (mean - Z * error, mean + Z * error)
    variance = error * error if error else 0.0
    count = max(samples, mean * (1 - mean) / variance) if variance else samples
    square = Z * Z / count
    middle, half = mean + square / 2, Z * math.sqrt(mean * (1 - mean) / count + square / (4 * count))
    low, high = (middle - half) / (1 + square), (middle + half) / (1 + square)
    return max(0.0, min(low, mean)), min(1.0, max(high, mean))  # 0 and 1 stay ends of their intervals after rounding


def bucket_size(length: int) -> int:
    """Tokens of each part of a window."""
    return -(-length // BUCKETS)


def _exp(nats: float) -> float | None:
    """exp; None where it overflows."""
    return math.exp(nats) if nats < 700 else None


def _by_depth(judged: Sequence[SampleResult]) -> tuple[DepthBin, ...]:
    """Return a bin for each part of the haystack that has a needle in any sample."""
    bins: dict[int, list[float]] = {}
    for result in judged:
        if result.depth is not None:
            bins.setdefault(min(int(result.depth * DEPTHS), DEPTHS - 1), []).append(result.score)
    return tuple(
        DepthBin(start=place / DEPTHS, end=(place + 1) / DEPTHS, mean=math.fsum(scores) / len(scores), samples=len(scores))
        for place, scores in sorted(bins.items())
    )


def _by_position(length: int, judged: Sequence[SampleResult]) -> tuple[PositionBin, ...]:
    size = bucket_size(length)
    rows = [result.nats for result in judged if result.nats is not None]
    bins: list[PositionBin] = []
    for place in range(max(map(len, rows), default=0)):
        nats = [row[place] for row in rows if place < len(row)]
        numbers = [result for result in nats if result is not None]
        if numbers:
            end = min((place + 1) * size, length)
            bins.append(PositionBin(start=place * size, end=end, nats=math.fsum(numbers) / len(numbers)))
    return tuple(bins)
