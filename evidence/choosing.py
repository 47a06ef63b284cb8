"""docs/choosing.md and its picture: which spec to take for a budget of state, a length and a task, out of kept runs."""

from __future__ import annotations

import shlex
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from composer.ablation.plan import read_variants
from composer.api import explain
from composer.evaluation.arguments import read_tasks
from composer.evaluation.options import EvaluationOptions
from composer.files import write_whole
from composer.spec.explain import Explanation
from composer.words import size
from evidence.experiments import CONFIRMATION, EXPERIMENTS, LENGTHS, SEEDS, TEACHER
from evidence.kept import Run, all_runs
from evidence.verdict import Kept, Place

DOCS = Path(__file__).parents[1] / "docs"
PAGE, PLOT = DOCS / "choosing.md", DOCS / "choosing.png"
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
    seeds; of tasks that are scored by loss, the perplexity. spread: of the mean score over seeds."""

    name: str
    path: str
    run: str
    costs: Mapping[int, Explanation]
    scores: Mapping[str, Mapping[int, float]]
    spread: float

    def state(self, length: int) -> int:
        """Bytes, of one text."""
        return self.costs[length].state_bytes

    @property
    def most_state(self) -> int:
        return max(cost.state_bytes for cost in self.costs.values())

    def score(self, *lengths: int) -> float:
        """The mean of all tasks that are scored by right answers, at these lengths; at all where none is said."""
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
    return f"{task} {length:,}" + (" perplexity" if asked()[task] else "")


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
                if not _complete(run, experiment.request.seeds, kept):
                    missing.append(variant.name)
                    continue
                costs = {length: explain(variant.spec, TEACHER, sequence=length) for length in LENGTHS}
                found.append(_candidate(variant.name, said.partition(":")[0], run, costs, kept))
    return sorted(found, key=lambda one: (one.most_state, one.name)), missing


def teacher(runs: Sequence[Run]) -> Candidate | None:
    """The source itself, whose cache grows with the text; None where it has not been scored."""
    kept = Kept(runs)
    if not _complete(REFERENCE, (0,), kept):
        return None
    costs = {length: explain("softmax", TEACHER, sequence=length) for length in LENGTHS}
    return _candidate("the teacher", "specs/softmax.yaml", REFERENCE, costs, kept)


def _complete(run: str, seeds: Sequence[int], kept: Kept) -> bool:
    return all(set(kept.at(Place(run, column(task, length)))) >= set(seeds) for task in asked() for length in LENGTHS)


def _candidate(name: str, path: str, run: str, costs: Mapping[int, Explanation], kept: Kept) -> Candidate:
    by_seed = {task: {length: kept.at(Place(run, column(task, length))) for length in LENGTHS} for task in asked()}
    scores = {task: {length: statistics.fmean(values.values()) for length, values in own.items()} for task, own in by_seed.items()}
    means = _means(run, kept)
    spread = statistics.stdev(means) if len(means) > 1 else 0.0
    return Candidate(name, path, run, costs, scores, spread)


def _means(run: str, kept: Kept) -> list[float]:
    """The mean score with each seed."""
    by_seed = [kept.at(Place(run, column(task, length))) for task in answered() for length in LENGTHS]
    return [statistics.fmean(scores[seed] for scores in by_seed) for seed in by_seed[0]]


def steps(every: Sequence[Candidate], task: str, length: int) -> list[Candidate]:
    """Whom to take as the budget grows: each is better, by ``BETTER``, than all that take no more state at that length."""
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


HEAD = f"""# Which spec to take

Given a budget of state, a length and a task, out of the runs that are kept in `evidence/runs` (experiments {{experiments}};
[evidence.md](evidence.md) has their commands). `python -m evidence --page` writes this page; nothing on it is chosen by hand.

All of it is of the small teacher that ships with this project ([examples/teacher](../examples/teacher)), whose students learn
from rows of {LENGTHS[0]} tokens, with seeds {", ".join(map(str, SEEDS))}. Lengths are once, twice, four and eight times that.
State is what `compose explain` says a text of that length takes; a score is the mean over seeds of the share of right answers
({{answered}}), and the rest is perplexity, where low is good.

"""
COSTS = "spec | state at {length:,} | mean score | fresh parameters | operations a token"


def write() -> None:
    """Both files, each as a whole or not at all; no picture where nothing is kept."""
    from evidence.choosing_plot import draw

    runs = all_runs()
    write_whole(PAGE, page(runs))
    found, _ = candidates(runs)
    if found:
        draw(found, teacher(runs), PLOT)


def page(runs: Sequence[Run]) -> str:
    """All of it but the picture."""
    return "".join(_page(runs))


def _page(runs: Sequence[Run]) -> Iterator[str]:
    found, missing = candidates(runs)
    source = teacher(runs)
    yield HEAD.format(
        experiments=" and ".join(f"`{name}`" for name in CHOICES), answered=" and ".join(f"`{one}`" for one in answered())
    )
    if found:
        yield "## Three to begin with\n\n"
        yield from _recommended(recommended(found), source)
        yield from _confirmed(Kept(runs))
        yield "\n![Mean score over state, at once to eight times the training length](choosing.png)\n\n"
        yield "The line is the best score that so much state buys; those with a ring are the three above.\n\n"
        yield _training(recommended(found)[-1].candidate)
        yield from _by_budget(found, source)
        yield from _every(found, source)
    if missing:
        yield f"{'Not every run is kept yet' if found else 'No run is kept yet'} of {', '.join(f'`{name}`' for name in missing)}: "
        yield "`make evidence` runs what is missing.\n"


def _recommended(three: Sequence[Recommended], source: Candidate | None) -> Iterator[str]:
    yield f"| | {COSTS.format(length=LENGTHS[-1])} | chosen by |\n"
    yield "|---|---|---:|---:|---:|---:|---|\n"
    for one in three:
        yield f"| **{one.title}** | {_link(one.candidate)} | {_costs(one.candidate)} | {one.rule} |\n"
    if source is not None:
        yield f"| | {_link(source)} | {_costs(source)} | for comparison: its cache grows with the text |\n"


def _confirmed(kept: Kept) -> Iterator[str]:
    """The mean scores with seeds that nothing was chosen by, where those runs are kept."""
    seeds, said = CONFIRMATION.request.seeds, []
    for variant in read_variants(CONFIRMATION.specs, CONFIRMATION.overrides):
        run = f"{CONFIRMATION.name}/{variant.name}"
        if not _complete(run, seeds, kept):
            return
        said.append(f"`{variant.name}` {', '.join(f'{mean:.3f}' for mean in _means(run, kept))}")
    yield f"\nSpecs were chosen by these scores. With seeds {', '.join(map(str, seeds))}, which chose nothing, mean scores are: "
    yield f"{'; '.join(said)}.\n"


def _training(one: Candidate) -> str:
    """The commands that train a student as all of these were."""
    experiment = EXPERIMENTS[TRAINED]
    said = [" ".join(f"--data {data}" for data in experiment.request.data), f"--share {experiment.request.share:g}"]
    lines = " \\\n        ".join(["", *said, *(f"--set {shlex.quote(setting)}" for setting in experiment.overrides)])
    return f"""Not all of these specs have a recipe of their own. All but `lola`, which learns nothing more, were trained like this:

    compose build {one.path} --from {TEACHER} -o build-output/student
    compose distill build-output/student -o build-output/trained{lines}

"""


def _by_budget(found: Sequence[Candidate], source: Candidate | None) -> Iterator[str]:
    every = [*found, *([source] if source is not None else [])]
    yield "## By budget, length and task\n\n"
    yield "From so much state on, take this spec (its score or perplexity in brackets). One that takes more state than another is\n"
    yield f"listed where its score is higher by {BETTER:g} or its perplexity lower by {BETTER:.0%} at least.\n\n"
    yield "| task | tokens | what to take as the budget grows |\n|---|---:|---|\n"
    for task in asked():
        for length in LENGTHS:
            taken = (
                f"{size(one.state(length))}: {one.name} ({_figure(one.scores[task][length])})" for one in steps(every, task, length)
            )
            yield f"| {task} | {length:,} | {'; '.join(taken)} |\n"
    yield "\n"


def _every(found: Sequence[Candidate], source: Candidate | None) -> Iterator[str]:
    columns = [(task, length) for task in asked() for length in LENGTHS]
    yield "## Every spec\n\n"
    yield "A link leads to the very spec. Those in `evidence/specs` do not ship: say their path to build one. There,\n"
    yield "`lolcats` learns with all parameters that the others have, and `lola` and `macchiato-full` have sizes that suit\n"
    yield "the small teacher.\n\n"
    yield f"| | state at {LENGTHS[0]:,} | at {LENGTHS[-1]:,} | mean score | {' | '.join(column(*one) for one in columns)} |\n"
    yield f"|---|{'---:|' * (3 + len(columns))}\n"
    for one in [*found, *([source] if source is not None else [])]:
        figures = " | ".join(_figure(one.scores[task][length]) for task, length in columns)
        yield f"| {_link(one)} | {size(one.state(LENGTHS[0]))} | {size(one.state(LENGTHS[-1]))} | {_mean(one)} | {figures} |\n"
    yield "\n"


def _costs(one: Candidate) -> str:
    """What stands below ``COSTS``, but for the spec."""
    cost = one.costs[LENGTHS[-1]]
    return f"{size(cost.state_bytes)} | {_mean(one)} | {cost.fresh_parameters:,} | {cost.decode_flops_per_token:,}"


def _mean(one: Candidate) -> str:
    return _figure(one.score()) + (f" ± {_figure(one.spread)}" if one.spread else "")


def _link(one: Candidate) -> str:
    return f"[{one.name}](../{one.path})"


def _figure(value: float) -> str:
    return f"{value:.2f}" if value < 10 else f"{value:.3g}"
