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
from composer.spec.explained import Explanation
from evidence.experiments import EXPERIMENTS, LENGTHS, TEACHER
from evidence.kept import Run
from evidence.verdict import Place, RunFigures

STUDENTS = "students"
CHOICES = {
    STUDENTS: (
        *("lolcats", "lawcat", "macchiato-full", "gated-delta", "alternating-delta", "alternating-kda", "alternating-lawcat"),
        *("lawcat-delta", "divided", "cached"),
    ),
    "lola-lengths": ("lola",),
}
"""The variants to choose from, by experiment."""
TEACHER_RUN = "teacher/softmax"
MIN_GAIN = 0.01
"""A larger state is listed if its score is higher by this, or its perplexity lower by this share."""
BALANCED_SHARE, SMALLEST_SHARE = 0.95, 0.75
"""The least scores of the two smaller recommendations, as shares of the best score."""


@dataclass(frozen=True)
class Candidate:
    """A spec, or the teacher.

    - run: EXPERIMENT/VARIANT.
    - costs: by length in tokens.
    - scores: means over seeds, by task and length. Tasks that are scored by loss have a perplexity.
    - spread: standard deviation of the mean score over seeds. spreads: the same at each length.
    """

    name: str
    path: str
    run: str
    costs: Mapping[int, Explanation]
    scores: Mapping[str, Mapping[int, float]]
    spread: float
    spreads: Mapping[int, float]

    def state(self, length: int) -> int:
        """Return the bytes of state of a text of this length."""
        return self.costs[length].state_bytes

    @property
    def max_state(self) -> int:
        return max(cost.state_bytes for cost in self.costs.values())

    def score(self, *lengths: int) -> float:
        """Return the mean score of all tasks with right answers, at these lengths, or at all lengths if there are none."""
        return statistics.fmean(self.scores[task][length] for task in list_answer_tasks() for length in lengths or LENGTHS)


@dataclass(frozen=True)
class Recommendation:
    """One of three recommendations. rule: the rule that chose it."""

    title: str
    rule: str
    candidate: Candidate


@cache
def list_tasks() -> dict[str, bool]:
    """Return the tasks of the experiments, each with True if it is scored by loss."""
    tasks: dict[str, bool] = {}
    for name in CHOICES:
        request = EXPERIMENTS[name].request
        tasks |= {task.label: task.task.scored == "loss" for task in read_tasks(request.tasks, EvaluationOptions())}
    return tasks


def list_answer_tasks() -> list[str]:
    """Return the tasks that are scored by right answers."""
    return [task for task, by_loss in list_tasks().items() if not by_loss]


def column_title(task: str, length: int) -> str:
    """Return the title of a column of kept runs."""
    return f"{task} {length:,}" + (" perplexity" if list_tasks().get(task) else "")


def find_candidates(runs: Sequence[Run]) -> tuple[list[Candidate], list[str]]:
    """Return the candidates with all figures of all seeds, the smallest state first, and the names of incomplete variants."""
    figures, candidates, missing = RunFigures(runs), [], []
    for name, variant_names in CHOICES.items():
        experiment = EXPERIMENTS[name]
        for reference in experiment.specs:
            for variant in read_variants((reference,), experiment.overrides):
                if variant.name not in variant_names:
                    continue
                run = f"{name}/{variant.name}"
                if not is_complete(run, experiment.request.seeds, figures):
                    missing.append(variant.name)
                    continue
                costs = {length: explain(variant.spec, TEACHER, sequence=length) for length in LENGTHS}
                candidates.append(_build_candidate(variant.name, reference.partition(":")[0], run, costs, figures))
    return sorted(candidates, key=lambda candidate: (candidate.max_state, candidate.name)), missing


def find_teacher(runs: Sequence[Run]) -> Candidate | None:
    """Return the teacher as a candidate, or None if it has not been scored."""
    figures = RunFigures(runs)
    if not is_complete(TEACHER_RUN, (0,), figures):
        return None
    costs = {length: explain("softmax", TEACHER, sequence=length) for length in LENGTHS}
    return _build_candidate("the teacher", "specs/softmax.yaml", TEACHER_RUN, costs, figures)


def is_complete(run: str, seeds: Sequence[int], figures: RunFigures, extra_tasks: Sequence[str] = ()) -> bool:
    """True if every seed has the figures of all tasks and of the extra tasks."""
    return all(
        set(figures.get_by_seed(Place(run, column_title(task, length)))) >= set(seeds)
        for task in (*list_tasks(), *extra_tasks)
        for length in LENGTHS
    )


def _build_candidate(name: str, path: str, run: str, costs: Mapping[int, Explanation], figures: RunFigures) -> Candidate:
    by_seed = {
        task: {length: figures.get_by_seed(Place(run, column_title(task, length))) for length in LENGTHS} for task in list_tasks()
    }
    scores = {
        task: {length: statistics.fmean(values.values()) for length, values in by_length.items()}
        for task, by_length in by_seed.items()
    }
    spreads = {length: compute_spread(compute_means(run, figures, lengths=(length,))) for length in LENGTHS}
    return Candidate(name, path, run, costs, scores, compute_spread(compute_means(run, figures)), spreads)


def compute_means(run: str, figures: RunFigures, extra_tasks: Sequence[str] = (), lengths: Sequence[int] = LENGTHS) -> list[float]:
    """Return the mean score of each seed, over the tasks with right answers and the extra tasks."""
    return compute_task_means(run, figures, (*list_answer_tasks(), *extra_tasks), lengths)


def compute_task_means(run: str, figures: RunFigures, tasks: Sequence[str], lengths: Sequence[int] = LENGTHS) -> list[float]:
    """Return the mean score of each seed over these tasks."""
    by_seed = [figures.get_by_seed(Place(run, column_title(task, length))) for task in tasks for length in lengths]
    return [statistics.fmean(scores[seed] for scores in by_seed) for seed in by_seed[0]]


def compute_spread(values: Sequence[float]) -> float:
    """Return the standard deviation of a sample; 0 for one value."""
    return statistics.stdev(values) if len(values) > 1 else 0.0


def choose_by_state(candidates: Sequence[Candidate], task: str, length: int) -> list[Candidate]:
    """Return the choices for a growing budget. Each is better, by ``MIN_GAIN``, than all candidates with at most as much state at
    that length."""
    choices: list[Candidate] = []
    by_loss = list_tasks()[task]
    sign = -1 if by_loss else 1
    for candidate in sorted(candidates, key=lambda candidate: (candidate.state(length), -sign * candidate.scores[task][length])):
        score, best = candidate.scores[task][length], choices[-1].scores[task][length] if choices else None
        if best is None or (score < best * (1 - MIN_GAIN) if by_loss else score >= best + MIN_GAIN):
            choices.append(candidate)
    return choices


def recommend(candidates: Sequence[Candidate]) -> tuple[Recommendation, ...]:
    """Return the smallest, balanced and best candidate, which may be the same; nothing if there are no candidates."""
    if not candidates:
        return ()
    best = min(candidates, key=lambda candidate: (-candidate.score(), candidate.max_state))

    def find_smallest(share: float) -> Candidate:
        return min(
            (candidate for candidate in candidates if candidate.score() >= share * best.score()),
            key=lambda candidate: (candidate.max_state, -candidate.score()),
        )

    rule = "the least state of those that keep {:.0%} of the best's mean score"
    return (
        Recommendation("smallest", rule.format(SMALLEST_SHARE), find_smallest(SMALLEST_SHARE)),
        Recommendation("balanced", rule.format(BALANCED_SHARE), find_smallest(BALANCED_SHARE)),
        Recommendation("best", "the highest mean score; of equals, the least state", best),
    )
