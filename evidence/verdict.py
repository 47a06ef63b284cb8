"""The verdict on a claim: its expectations are tested with every seed by itself."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from evidence.ablations import ABLATIONS
from evidence.experiments import SEEDS
from evidence.kept import Run

State = Literal["holds", "fails", "open"]
Verdict = Literal["reproduced", "not reproduced", "not at this scale", "runs are missing"]
BY_STATE: dict[State, str] = {"holds": "yes", "fails": "no", "open": "open"}


@dataclass(frozen=True)
class Place:
    """A figure. run: EXPERIMENT/VARIANT. column: its title in the ablation's report, or several, whose mean is used."""

    run: str
    column: str | tuple[str, ...]

    @property
    def columns(self) -> tuple[str, ...]:
        return (self.column,) if isinstance(self.column, str) else self.column


@dataclass(frozen=True)
class Expected:
    """An expectation. says: in words. holds: whether it holds for the two figures of one seed; None if they cannot be
    distinguished. beyond: it expects more than the paper claims, on another task for example, and does not count for the
    verdict."""

    says: str
    left: Place
    right: Place | float
    holds: Callable[[float, float], bool | None]
    beyond: bool = False


def above(says: str, left: Place, right: Place, times: float = 1.0) -> Expected:
    """Left is more than ``times`` right; two equal figures cannot be distinguished."""
    return Expected(says, left, right, lambda one, other: None if one == times * other else one > times * other)


def below(says: str, left: Place, right: Place) -> Expected:
    """Left is less than right; two equal figures cannot be distinguished."""
    return Expected(says, left, right, lambda one, other: None if one == other else one < other)


def at_least(says: str, left: Place, least: float) -> Expected:
    return Expected(says, left, least, lambda one, other: one >= other)


def at_most(says: str, left: Place, most: float) -> Expected:
    return Expected(says, left, most, lambda one, other: one <= other)


def near(says: str, left: Place, right: Place, share: float) -> Expected:
    """Left lies within a share of right."""
    return Expected(says, left, right, lambda one, other: abs(one - other) <= share * abs(other))


def beyond(expected: Expected) -> Expected:
    """The expectation, which does not count for the verdict, as the paper does not claim it."""
    return replace(expected, beyond=True)


class Kept:
    """The figures of all runs that are kept."""

    def __init__(self, runs: Sequence[Run]) -> None:
        self._figures: dict[str, dict[str, dict[int, float]]] = {}
        for run in runs:
            columns = self._figures.setdefault(f"{run.experiment}/{run.variant}", {})
            for column, value in run.figures.items():
                columns.setdefault(column, {})[run.seed] = value

    def at(self, place: Place) -> dict[int, float]:
        """The figures of a place by seed; empty where no run is kept."""
        own = self._figures.get(place.run, {})
        found = [own.get(column, {}) for column in place.columns]
        return {seed: statistics.fmean(one[seed] for one in found) for seed in found[0] if all(seed in one for one in found)}


def seeds_of(expected: Expected, kept: Kept) -> Mapping[int, bool | None]:
    """For each seed, whether the expectation holds. A deterministic run has one seed, and is compared with all of the other's."""
    left = kept.at(expected.left)
    right = kept.at(expected.right) if isinstance(expected.right, Place) else dict.fromkeys(left, expected.right)
    left, right = _beside(left, right), _beside(right, left)
    return {seed: expected.holds(left[seed], right[seed]) for seed in sorted(left) if seed in right}


def state(expected: Expected, kept: Kept) -> State:
    """holds or fails: with every seed; open: otherwise."""
    found = set(seeds_of(expected, kept).values())
    return "holds" if found == {True} else "fails" if found == {False} else "open"


def verdict(expectations: Sequence[Expected], kept: Kept) -> Verdict:
    """reproduced: all expectations hold with every seed. not reproduced: one of them fails with every seed. not at this scale:
    seeds differ, or figures cannot be distinguished. There is no verdict before all seeds have run."""
    if any(len(seeds_of(one, kept)) < len(_wanted(one)) for one in expectations):
        return "runs are missing"
    states = [state(one, kept) for one in expectations if not one.beyond]
    if all(one == "holds" for one in states):
        return "reproduced"
    return "not reproduced" if "fails" in states else "not at this scale"


def _wanted(expected: Expected) -> tuple[int, ...]:
    """The seeds to test an expectation with: one where both runs are deterministic."""
    places = [place for place in (expected.left, expected.right) if isinstance(place, Place)]
    experiments = [ABLATIONS.get(place.run.partition("/")[0]) for place in places]
    return max((SEEDS if one is None else one.request.seeds for one in experiments), key=len)


def _beside(own: Mapping[int, float], other: Mapping[int, float]) -> dict[int, float]:
    if len(own) == 1 and len(other) > 1:
        return dict.fromkeys(other, next(iter(own.values())))
    return dict(own)
