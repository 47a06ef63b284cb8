"""Verdicts on claims. An expectation of a claim is tested with each seed separately."""

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
STATE_LABELS: dict[State, str] = {"holds": "yes", "fails": "no", "open": "open"}


@dataclass(frozen=True)
class Place:
    """The place of a figure in the kept runs.

    - run: EXPERIMENT/VARIANT.
    - column: the column's title in the ablation's report, or several titles, whose mean is used.
    """

    run: str
    column: str | tuple[str, ...]

    @property
    def columns(self) -> tuple[str, ...]:
        return (self.column,) if isinstance(self.column, str) else self.column


@dataclass(frozen=True)
class Expectation:
    """An expectation about two figures.

    - text: the expectation in words.
    - holds: whether it holds for the two figures of one seed; None if they are equal.
    - is_beyond_paper: it expects more than the paper claims, for example on another task. It does not count for the verdict.
    """

    text: str
    left: Place
    right: Place | float
    holds: Callable[[float, float], bool | None]
    is_beyond_paper: bool = False


def above(text: str, left: Place, right: Place, times: float = 1.0) -> Expectation:
    """Expect left > times · right. It is open if both sides are equal."""
    return Expectation(
        text, left, right, lambda value, reference: None if value == times * reference else value > times * reference
    )


def below(text: str, left: Place, right: Place) -> Expectation:
    """Expect left < right. It is open if both sides are equal."""
    return Expectation(text, left, right, lambda value, reference: None if value == reference else value < reference)


def at_least(text: str, left: Place, least: float) -> Expectation:
    """Expect left ≥ least."""
    return Expectation(text, left, least, lambda value, reference: value >= reference)


def at_most(text: str, left: Place, most: float) -> Expectation:
    """Expect left ≤ most."""
    return Expectation(text, left, most, lambda value, reference: value <= reference)


def near(text: str, left: Place, right: Place, share: float) -> Expectation:
    """Expect |left - right| ≤ share · |right|."""
    return Expectation(text, left, right, lambda value, reference: abs(value - reference) <= share * abs(reference))


def beyond(expectation: Expectation) -> Expectation:
    """Return the expectation marked as beyond the paper, so that it does not count for the verdict."""
    return replace(expectation, is_beyond_paper=True)


class RunFigures:
    """The figures of runs."""

    def __init__(self, runs: Sequence[Run]) -> None:
        self._figures: dict[str, dict[str, dict[int, float]]] = {}
        for run in runs:
            columns = self._figures.setdefault(f"{run.experiment}/{run.variant}", {})
            for column, value in run.figures.items():
                columns.setdefault(column, {})[run.seed] = value

    def get_by_seed(self, place: Place) -> dict[int, float]:
        """Return the figures of a place by seed. Seeds without a run are missing."""
        columns = self._figures.get(place.run, {})
        values_by_column = [columns.get(column, {}) for column in place.columns]
        return {
            seed: statistics.fmean(values[seed] for values in values_by_column)
            for seed in values_by_column[0]
            if all(seed in values for values in values_by_column)
        }


def judge_seeds(expectation: Expectation, figures: RunFigures) -> Mapping[int, bool | None]:
    """Return whether the expectation holds, by seed. The one seed of a deterministic run is compared with all of the other run."""
    left = figures.get_by_seed(expectation.left)
    right = expectation.right
    right = figures.get_by_seed(right) if isinstance(right, Place) else dict.fromkeys(left, right)
    left, right = _broadcast(left, right), _broadcast(right, left)
    return {seed: expectation.holds(left[seed], right[seed]) for seed in sorted(left) if seed in right}


def judge_expectation(expectation: Expectation, figures: RunFigures) -> State:
    """Return "holds" or "fails" if all seeds agree, else "open"."""
    outcomes = set(judge_seeds(expectation, figures).values())
    return "holds" if outcomes == {True} else "fails" if outcomes == {False} else "open"


def judge_claim(expectations: Sequence[Expectation], figures: RunFigures) -> Verdict:
    """Return the verdict on a claim with these expectations.

    - reproduced: every expectation holds with every seed.
    - not reproduced: at least one expectation fails with every seed.
    - not at this scale: neither of both, because seeds differ or figures are equal.
    - runs are missing: not all seeds have run.
    """
    if any(len(judge_seeds(expectation, figures)) < len(_list_seeds(expectation)) for expectation in expectations):
        return "runs are missing"
    states = [judge_expectation(expectation, figures) for expectation in expectations if not expectation.is_beyond_paper]
    if all(state == "holds" for state in states):
        return "reproduced"
    return "not reproduced" if "fails" in states else "not at this scale"


def _list_seeds(expectation: Expectation) -> tuple[int, ...]:
    """Return the seeds to test an expectation with. There is one if both runs are deterministic."""
    places = [place for place in (expectation.left, expectation.right) if isinstance(place, Place)]
    experiments = [ABLATIONS.get(place.run.partition("/")[0]) for place in places]
    return max((SEEDS if experiment is None else experiment.request.seeds for experiment in experiments), key=len)


def _broadcast(values: Mapping[int, float], reference: Mapping[int, float]) -> dict[int, float]:
    """Repeat a single value for all seeds of the reference."""
    if len(values) == 1 and len(reference) > 1:
        return dict.fromkeys(reference, next(iter(values.values())))
    return dict(values)
