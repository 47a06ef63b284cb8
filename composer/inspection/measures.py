"""Small measures of what flows in a head: recall of values, spectra, half-lives, entropies, bins."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from blocks.operation import State
from composer.inspection.findings import PlainArray, Recalled, Spectrum, Vectors

CUT = 1e-12
"""The share of the largest eigenvalue below which others are rounding errors."""
BINS_OF_AGE = 12
"""The most bins of ages. Their widths grow by a constant factor."""


@runtime_checkable
class Recalls(Protocol):
    """A memory that can predict the value of a stored pair from the pair's key and the current state."""

    def predict(self, key: Tensor, state: State) -> Tensor:
        """Return the answer B E N D to keys. key: B E N F, features in the form that the memory reads."""
        ...


@dataclass(frozen=True)
class Moment:
    """The pairs after ``column`` tokens: ages E, whether each head has a pair, E N, true and recalled values, E N D."""

    column: int
    age: Tensor
    is_stored: Tensor
    value: Tensor
    back: Tensor

    @property
    def scores(self) -> tuple[Tensor, Tensor]:
        """Relative error and cosine of each pair's value, E N."""
        error = (self.back - self.value).norm(dim=-1) / self.value.norm(dim=-1).clamp(min=1e-12)
        return error, torch.nn.functional.cosine_similarity(self.value, self.back, dim=-1)


def measure_recall(moments: Sequence[Moment]) -> Recalled:
    """Return the recall of stored values, over the number of stored pairs and over their age."""
    last = moments[-1]
    ages = last.age[last.is_stored.any(1)] + 1
    bounds = np.unique(np.geomspace(int(ages.min()), int(ages.max()), BINS_OF_AGE).round().astype(int)).tolist()
    bins = [
        last.is_stored & ((last.age >= low) & (last.age < high))[:, None] for low, high in zip([0, *bounds], bounds, strict=False)
    ]
    scores = [moment.scores for moment in moments]
    error, cosine = (
        np.stack([mean_of(both[which], moment.is_stored) for both, moment in zip(scores, moments, strict=True)])
        for which in range(2)
    )
    error_by_age, cosine_by_age = (np.stack([mean_of(scores[-1][which], inside) for inside in bins]) for which in range(2))
    return Recalled(
        columns=tuple(moment.column for moment in moments),
        stored=tuple(float(moment.is_stored.double().sum(0).mean()) for moment in moments),
        error=error,
        cosine=cosine,
        ages=tuple(bounds),
        error_by_age=error_by_age,
        cosine_by_age=cosine_by_age,
    )


def mean_of(scores: Tensor, chosen: Tensor) -> PlainArray:
    """Return the mean over the chosen pairs, E N to N; NaN where a head has none."""
    return (scores.double().where(chosen, 0.0).sum(0) / chosen.sum(0)).numpy()


def spectrum(vectors: Tensor, kind: Vectors = "key", stage: str = "", *, logarithm: bool = False) -> Spectrum:
    """Return the spectrum of vectors E N F, or of their logarithms. of, stage: their kind, and the step that computed them."""
    wide = vectors.double()
    if logarithm:
        wide = (wide - wide.amax((0, 2), keepdim=True)).exp()
    values = torch.linalg.eigvalsh(torch.einsum("enf,eng->nfg", wide, wide)).flip(-1).clamp(min=0)
    values = values.where(values > CUT * values[:, :1], 0.0)
    shares = values / values.sum(-1, keepdim=True).clamp(min=torch.finfo(torch.float64).tiny)
    return Spectrum(shares=shares.numpy(), effective_rank=entropy(shares).exp().numpy(), vectors=kind, stage=stage)


def half_lives(log_decay: Tensor) -> PlainArray:
    """Tokens until half is left, of mean log decays ≤ 0; infinite where nothing decays."""
    return (math.log(2) / log_decay.double().abs()).numpy()


def norm(vectors: Tensor) -> Tensor:
    """Return the norm over the last dimension, also where squares would overflow."""
    largest = vectors.abs().amax(-1, keepdim=True)
    return (vectors / largest.masked_fill(largest == 0, 1.0)).norm(dim=-1) * largest[..., 0]


def entropy(shares: Tensor) -> Tensor:
    """Return the entropy over the last dimension, in nats."""
    return -(shares * shares.clamp(min=torch.finfo(shares.dtype).tiny).log()).sum(-1)


def stretches(truths: Tensor) -> tuple[tuple[int, int], ...]:
    """First and last column of each stretch of a row of truths."""
    steps = torch.nn.functional.pad(truths.to(torch.int8), (1, 1)).diff()
    starts, ends = (steps == 1).nonzero()[:, 0], (steps == -1).nonzero()[:, 0] - 1
    return tuple(zip(starts.tolist(), ends.tolist(), strict=True))


def sum_bins(numbers: Tensor, size: int, *, mean: bool = False) -> Tensor:
    """Sums (means) over bins of the last dimension, of so many columns each; the last bin may have fewer."""
    missing = -numbers.shape[-1] % size
    sums = torch.nn.functional.pad(numbers, (0, missing)).unflatten(-1, (-1, size)).sum(-1)
    if not mean:
        return sums
    counts = torch.full((sums.shape[-1],), float(size), dtype=sums.dtype)
    counts[-1] = size - missing
    return sums / counts
