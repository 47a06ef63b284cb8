"""The choice of a spec for a budget of state, a length and a task, from kept runs."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from composer.ablation.plan import read_variants
from composer.commands.explain import explain
from composer.evaluation.arguments import read_tasks
from composer.evaluation.options import EvaluationOptions
from composer.spec.explain import Explanation
from evidence.experiments import EXPERIMENTS, LENGTHS, TEACHER
from evidence.kept import Run
from evidence.verdict import Kept, Place

TRAINED = "students"
CHOICES = {
    TRAINED: (
        *("lolcats", "lawcat", "macchiato-full", "gated-delta", "alternating-delta", "alternating-kda", "alternating-lawcat"),
        *("lawcat-delta", "divided", "cached"),
    ),
    "lola-lengths": ("lola",),
}
"""The variants that there are to choose from, by experiment."""
REFERENCE = "teacher/softmax"
BETTER = 0.01
"""A larger state is worth its bytes where the score is higher by so much, or the perplexity lower by such a share."""
BALANCED, SMALLEST = 0.95, 0.75
"""Shares of the best score that the two smaller recommendations keep."""


@dataclass(frozen=True)
class Candidate:
    """A spec, or the teacher. run: EXPERIMENT/VARIANT. costs: by length in tokens. scores: by task, then by length, the mean over
    seeds; of tasks that are scored by loss, the perplexity. spread: of the mean score over seeds; spreads: at each length."""

    name: str
    path: str
    run: str
    costs: Mapping[int, Explanation]
    scores: Mapping[str, Mapping[int, float]]
    spread: float
    spreads: Mapping[int, float]

    def state(self, length: int) -> int:
        """Bytes, of one text."""
        return self.costs[length].state_bytes

    @property
    def most_state(self) -> int:
        return max(cost.state_bytes for cost in self.costs.values())

    def score(self, *lengths: int) -> float:
        """The mean of all tasks that are scored by right answers, at these lengths; at all lengths if none is set."""
        return statistics.fmean(self.scores[task][length] for task in answered() for length in lengths or LENGTHS)


@dataclass(frozen=True)
class Recommended:
    """One of the three. rule: how it was found."""

    title: str
    rule: str
    candidate: Candidate


@cache
def asked() -> dict[str, bool]:
    """The tasks of the experiments, each with whether it is scored by loss."""
    found: dict[str, bool] = {}
    for name in CHOICES:
        request = EXPERIMENTS[name].request
        found |= {one.label: one.task.scored == "loss" for one in read_tasks(request.tasks, EvaluationOptions())}
    return found


def answered() -> list[str]:
    return [task for task, by_loss in asked().items() if not by_loss]


def column(task: str, length: int) -> str:
    """As a kept run has it."""
    return f"{task} {length:,}" + (" perplexity" if asked().get(task) else "")


def candidates(runs: Sequence[Run]) -> tuple[list[Candidate], list[str]]:
    """Those whose runs of every seed have every figure, the least state first; and the names of the others."""
    kept, found, missing = Kept(runs), [], []
    for name, names in CHOICES.items():
        experiment = EXPERIMENTS[name]
        for said in experiment.specs:
            for variant in read_variants((said,), experiment.overrides):
                if variant.name not in names:
                    continue
                run = f"{name}/{variant.name}"
                if not complete(run, experiment.request.seeds, kept):
                    missing.append(variant.name)
                    continue
                costs = {length: explain(variant.spec, TEACHER, sequence=length) for length in LENGTHS}
                found.append(_candidate(variant.name, said.partition(":")[0], run, costs, kept))
    return sorted(found, key=lambda one: (one.most_state, one.name)), missing


def teacher(runs: Sequence[Run]) -> Candidate | None:
    """The source itself, whose cache grows with the text; None where it has not been scored."""
    kept = Kept(runs)
    if not complete(REFERENCE, (0,), kept):
        return None
    costs = {length: explain("softmax", TEACHER, sequence=length) for length in LENGTHS}
    return _candidate("the teacher", "specs/softmax.yaml", REFERENCE, costs, kept)


def complete(run: str, seeds: Sequence[int], kept: Kept, more: Sequence[str] = ()) -> bool:
    """Whether every seed has the figures of the tasks, and of more of them."""
    return all(set(kept.at(Place(run, column(task, length)))) >= set(seeds) for task in (*asked(), *more) for length in LENGTHS)


def _candidate(name: str, path: str, run: str, costs: Mapping[int, Explanation], kept: Kept) -> Candidate:
    by_seed = {task: {length: kept.at(Place(run, column(task, length))) for length in LENGTHS} for task in asked()}
    scores = {task: {length: statistics.fmean(values.values()) for length, values in own.items()} for task, own in by_seed.items()}
    spreads = {length: spread_of(means(run, kept, lengths=(length,))) for length in LENGTHS}
    return Candidate(name, path, run, costs, scores, spread_of(means(run, kept)), spreads)


def means(run: str, kept: Kept, more: Sequence[str] = (), lengths: Sequence[int] = LENGTHS) -> list[float]:
    """The mean score with each seed. more: tasks besides."""
    return means_of(run, kept, (*answered(), *more), lengths)


def means_of(run: str, kept: Kept, tasks: Sequence[str], lengths: Sequence[int] = LENGTHS) -> list[float]:
    """The mean score of these tasks with each seed."""
    by_seed = [kept.at(Place(run, column(task, length))) for task in tasks for length in lengths]
    return [statistics.fmean(scores[seed] for scores in by_seed) for seed in by_seed[0]]


def spread_of(each: Sequence[float]) -> float:
    """The standard deviation of a sample; 0 of one figure."""
    return statistics.stdev(each) if len(each) > 1 else 0.0


def steps(every: Sequence[Candidate], task: str, length: int) -> list[Candidate]:
    """Return the choices for a growing budget: each is better, by ``BETTER``, than all with at most as much state at that
    length."""
    taken: list[Candidate] = []
    sign = -1 if asked()[task] else 1
    for one in sorted(every, key=lambda one: (one.state(length), -sign * one.scores[task][length])):
        own, best = one.scores[task][length], taken[-1].scores[task][length] if taken else None
        if best is None or (own < best * (1 - BETTER) if asked()[task] else own >= best + BETTER):
            taken.append(one)
    return taken


def recommended(found: Sequence[Candidate]) -> tuple[Recommended, ...]:
    """Best, balanced and smallest; two of them may be the same spec. None where there is nothing to choose from."""
    if not found:
        return ()
    best = min(found, key=lambda one: (-one.score(), one.most_state))

    def least(share: float) -> Candidate:
        return min((one for one in found if one.score() >= share * best.score()), key=lambda one: (one.most_state, -one.score()))

    rule = "the least state of those that keep {:.0%} of the best's mean score"
    return (
        Recommended("smallest", rule.format(SMALLEST), least(SMALLEST)),
        Recommended("balanced", rule.format(BALANCED), least(BALANCED)),
        Recommended("best", "the highest mean score; of equals, the least state", best),
    )
