"""The choice of evicted pairs follows the definition of bar, ties and age, pair by pair."""

from __future__ import annotations

import math

import torch
from hypothesis import given, strategies

from blocks.scores.base import pairs_to_evict

RESOLUTION = 2.0**-10

NUMBERS = (0.0, 1.0, 1.0 + RESOLUTION / 2, 1.0 + 3 * RESOLUTION, -2.0, math.inf, -math.inf)
PAIRS = strategies.lists(strategies.tuples(strategies.sampled_from(NUMBERS), strategies.booleans()), min_size=2, max_size=9)


def by_the_words(score: list[float], gone: list[bool], count: int) -> list[int]:
    """Return the places of the evicted pairs. The resolution is a share of a score, and 0 for an infinite score."""
    compete = [place for place, out in enumerate(gone) if not out]
    bar = sorted(score[place] for place in compete)[count]

    def side(place: int) -> int:
        """Return whether a score is below the bar, equal to it, or above it."""
        within = sum(RESOLUTION * abs(of) for of in (score[place], bar) if math.isfinite(of))
        return 0 if score[place] == bar or abs(score[place] - bar) <= within else (1 if score[place] > bar else -1)

    return sorted(sorted(compete, key=lambda place: (side(place), -place))[:count])


@given(PAIRS, strategies.data())
def test_pairs_to_evict_are_those_with_the_lowest_scores(pairs: list[tuple[float, bool]], data: strategies.DataObject) -> None:
    """Scores have ties, near ties, infinities, places without a pair and ineligible pairs, in two heads of opposite order."""
    score, gone = ([pair[of] for pair in pairs] for of in (0, 1))
    compete = gone.count(False)
    if compete < 2:
        return
    count = data.draw(strategies.integers(1, compete - 1))
    heads = [(score, gone), (score[::-1], gone[::-1])]
    given_scores = torch.tensor([given_scores for given_scores, _ in heads], dtype=torch.float64).T[None]
    chosen = pairs_to_evict(
        given_scores,
        RESOLUTION * given_scores.abs(),
        given_scores > -math.inf,
        torch.tensor([out for _, out in heads]).T[None],
        count,
    )
    assert chosen[0].T.tolist() == [by_the_words(*head, count) for head in heads]


def test_all_pairs_are_evicted_if_none_is_eligible() -> None:
    zero = torch.zeros(1, 3, 1)
    assert pairs_to_evict(zero, zero, zero == 0, zero > 0, 3).flatten().tolist() == [0, 1, 2]
