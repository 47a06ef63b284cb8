"""Scores of pairs for a sparse cache: among the candidates for its places, the pairs with the largest scores are kept."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

from blocks.legend import Bool, Float, Int, Tensor, torch
from blocks.part import Part

LARGEST = 40.0
"""Exponents of the weights that are compared stop here, where squares still fit float32."""
ROUNDING = 16
"""The rounding error of a score: so many machine epsilons of its dtype, times the size of the numbers that it is computed from.
Two scores within their rounding errors are equal, and then age decides. A larger number would let age decide more often. With a
smaller one, rounding would decide between the pairs of repeated tokens."""


def rounding_error(dtype: torch.dtype) -> float:
    """Return the relative rounding error of scores of this dtype: 2^-19 for float32 and 2^-48 for float64."""
    return ROUNDING * torch.finfo(dtype).eps


@dataclass(frozen=True)
class Contenders:
    """Pairs that compete for a place, each query head's own; -1 is the position of none.

    distance: where the score reads the state, how far what it predicts for each pair's own key is from the pair's value; norm: and
    how long the value is. errors: where it reads the window, the pair's errors there, summed over the queries that saw it. place:
    the layer, and the first of these heads in it.
    """

    position: Int[Tensor, "B E H"]
    value: Float[Tensor, "B E H V"]
    distance: Float[Tensor, "B E H"] | None
    norm: Float[Tensor, "B E H"] | None
    errors: Float[Tensor, "B E H"] | None
    place: tuple[int, int]


class Score(Part):
    """A number for each pair, without a gradient. A score that reads the state reads it after the previous token: pairs evicted at
    a token are scored before that token's decay, and before any of them is written. At the first token of a document the state is
    empty.
    """

    role: ClassVar[str] = "score"
    reads: ClassVar[Literal["pair", "state", "window"]] = "pair"
    """What the score reads: the pair alone, the state below, or the window above."""
    by_position: ClassVar[bool] = False
    """True if the score depends on the position alone and has no rounding error."""

    def score(self, pairs: Contenders) -> Float[Tensor, "B E H"]:
        """Return the score of each pair. Scores of absent entries (position -1) are not used."""
        raise NotImplementedError

    def resolution(self, pairs: Contenders, score: Float[Tensor, "B E H"]) -> Float[Tensor, "B E H"]:
        """Return how far each of these scores may be from its value in exact arithmetic."""
        return torch.zeros_like(score) if self.by_position else rounding_error(score.dtype) * score.abs()

    def error(self, exact: Float[Tensor, "B H t e"], product: Float[Tensor, "B H t e"]) -> Float[Tensor, "B H t e"]:
        """For a score that reads the window: return the difference between the product of features and the weight exp(q·k / √D)
        that it approximates."""
        raise NotImplementedError


class WindowScore(Score):
    """The errors of a pair while the window held it, summed over the queries that read it."""

    reads: ClassVar[Literal["pair", "state", "window"]] = "window"

    def score(self, pairs: Contenders) -> Float[Tensor, "B E H"]:
        assert pairs.errors is not None, "the graph wires the window above"
        return pairs.errors


def pairs_to_evict(
    score: Float[Tensor, "B E H"],
    resolution: Float[Tensor, "B E H"],
    present: Bool[Tensor, "B E H"],
    gone: Bool[Tensor, "B E H"],
    count: int,
) -> Int[Tensor, "B M H"]:
    """Return the ``count`` candidates to evict, in the order of age. The candidates are sorted by age. present: which places hold
    pairs; the score of an empty place is -inf. gone: which pairs are not candidates. The bar is the smallest score that is kept by
    scores alone. Two scores are equal if they differ by no more than the sum of their resolutions, which are their rounding errors.
    Pairs below the bar are evicted, and of the pairs equal to it the youngest. If scores differ by more than rounding, these are
    the pairs of the ``count`` smallest scores.
    """
    age = torch.arange(score.shape[1], device=score.device)[:, None]
    if count == score.shape[1]:
        return age.expand_as(score)
    score = score.masked_fill(~present, -math.inf)
    smallest = score.masked_fill(gone, math.inf).topk(count + 1, dim=1, largest=False)
    resolution = resolution.nan_to_num(0.0, posinf=0.0)  # where a score is infinite
    # The difference of two infinities is no number, and compares as equal.
    margin = score - smallest.values[:, -1:]
    within = resolution + resolution.gather(1, smallest.indices[:, -1:])
    rank = torch.where(margin < -within, age + score.shape[1], age).masked_fill((margin > within) | gone, -1)
    return rank.argmax(dim=1, keepdim=True) if count == 1 else rank.topk(count, dim=1).indices.sort(dim=1).values


def places(score: Float[Tensor, "B E H"]) -> Int[Tensor, "B E H"]:
    """Return how many different scores lie below each: numbers that compare as the scores do."""
    ordered, index = score.sort(dim=1)
    steps = torch.nn.functional.pad((ordered[:, 1:] > ordered[:, :-1]).long(), (0, 0, 1, 0))
    return torch.zeros_like(index).scatter(1, index, steps.cumsum(1))
