"""docs/choosing.md and its picture: which spec to take for a budget of state, a length and a task, out of kept runs."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean

from composer.files import write_whole
from composer.spec.loading import load_spec
from composer.words import size
from evidence.choosing import (
    BETTER,
    CHOICES,
    TRAINED,
    Candidate,
    Recommended,
    answered,
    asked,
    candidates,
    column,
    complete,
    means,
    means_of,
    recommended,
    spread_of,
    steps,
    teacher,
)
from evidence.experiments import CONFIRMATION, EXPERIMENTS, LENGTHS, SEEDS, TEACHER
from evidence.kept import Run, read_runs
from evidence.page import listed
from evidence.second import HARDER, SECOND, SECOND_LOLA, SECOND_TEACHER
from evidence.smollm2.budget import budget_table
from evidence.smollm2.plan import read_plan
from evidence.smollm2.report import models_of
from evidence.verdict import Kept

DOCS = Path(__file__).parents[1] / "docs"
PAGE, PLOT = DOCS / "choosing.md", DOCS / "choosing.png"
HEAD = f"""# Which spec to take

A recommendation for a budget of state, a text length and a task, computed from the runs in `evidence/runs` (experiments
{{experiments}}; [evidence.md](evidence.md) has their commands). `python -m evidence --page` writes this page.

All figures are of students of the small teacher ([examples/teacher](../examples/teacher)), with seeds
{", ".join(map(str, SEEDS))}. They learned from rows of {LENGTHS[0]} tokens; lengths are one, two, four and eight times that. State
is that of `compose explain` for a text of that length. A score is the mean over seeds of the share of right answers ({{answered}}).
Other figures are perplexity, where lower is better.

"""
FRESH = ("lawcat-delta", "lawcat")
"""What ``CONFIRMATION`` scored with seeds that chose nothing."""
OTHERS = {
    "lawcat-delta": (SECOND, "lawcat-delta"),
    "lawcat": (SECOND, "lawcat-convolution-complete"),
    "lolcats": (SECOND, "lolcats"),
    "macchiato": (SECOND, "macchiato-66"),
    "lola": (SECOND_LOLA, "lola"),
}
"""Students of the second teacher, by the names that the page has: the experiment, and the variant there."""
UNTRAINED = (
    "forgetting", "gated-deltanet", "gdn-hybrid", "gdn2-hybrid", "hypenet", "kda-hybrid", "liger", "lizard", "mamba2",
    "mesa", "rwkv7",
)  # fmt: skip
"""Specs of other papers that ship, and that no run is of."""
CLOSE = 0.05
"""Two states that differ by less, as a share, are not what decides."""
COSTS = "spec | state at {length:,} | mean score | fresh parameters | operations a token"


def write() -> None:
    """Both files, each as a whole or not at all; no picture where nothing is kept."""
    from evidence.choosing_plot import draw

    runs = read_runs()
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
        yield "## Three recommendations\n\n"
        three = recommended(found)
        yield from _recommended(three, source)
        yield from _difference(three)
        yield from _confirmed(three, Kept(runs))
        yield "\n![State and mean score of each spec, at once to eight times the training length](choosing.png)\n\n"
        yield "The smallest state is at the top. The line is the best score for each state size, bars are ± a standard deviation "
        yield "over seeds, and the filled ones are the three above.\n\n"
        yield _training(found, three[-1].candidate)
        yield from _by_budget(found, source)
        yield from _every(found, source)
        yield from _on_a_language_model()
    if missing:
        yield f"{'Not every run is kept yet' if found else 'No run is kept yet'} of {', '.join(f'`{name}`' for name in missing)}: "
        yield "`make evidence` runs what is missing.\n"


def _on_a_language_model() -> Iterator[str]:
    """The same question for the students of SmolLM2-135M, where runs of them are kept."""
    plan = read_plan()
    models = models_of(plan)
    if models:
        yield "## For SmolLM2-135M\n\n"
        yield "Students of a language model after two million tokens of training each ([smollm2.md](smollm2.md)). A model is "
        yield "listed if it is better than the one before it by more than the 95 % interval of the difference on the same rows.\n\n"
        yield budget_table(plan, models).markdown()


def _recommended(three: Sequence[Recommended], source: Candidate | None) -> Iterator[str]:
    yield f"| | {COSTS.format(length=LENGTHS[-1])} | chosen by |\n"
    yield "|---|---|---:|---:|---:|---:|---|\n"
    for one in three:
        yield f"| **{one.title}** | {_link(one.candidate)} | {_costs(one.candidate)} | {one.rule} |\n"
    if source is not None:
        yield f"| | {_link(source)} | {_costs(source)} | for comparison: its cache grows with the text |\n"


def _difference(three: Sequence[Recommended]) -> Iterator[str]:
    """What there is to choose between balanced and best, where their states hardly differ."""
    one, best = three[-2].candidate, three[-1].candidate
    share = 1 - one.most_state / best.most_state
    if one.run == best.run or share >= CLOSE:
        return
    gains = {(best.scores[task][at] - one.scores[task][at], task, at) for task in answered() for at in LENGTHS}
    _, task, at = max(gains)
    higher, lower = (_figure(each.scores[task][at]) for each in (best, one))
    fresh, work = _less(one, best, "fresh_parameters"), _less(one, best, "decode_flops_per_token")
    yield f"\n`{one.name}` takes {share:.1%} less state than `{best.name}`, which does not decide between them. "
    yield f"`{one.name}` has {fresh:.0%} fewer fresh parameters and {work:.0%} fewer operations per token. `{best.name}` has the "
    yield f"higher score, most of all in {task} at {at:,} tokens ({higher}, not {lower})"
    if best.spread < one.spread:
        yield f", and smaller differences between seeds (± {best.spread:.3f}, not ± {one.spread:.3f})"
    yield ".\n"


def _less(one: Candidate, other: Candidate, cost: str) -> float:
    """By which share one's cost is below the other's."""
    least, most = (getattr(each.costs[LENGTHS[-1]], cost) for each in (one, other))
    return 1 - least / most


def _confirmed(three: Sequence[Recommended], kept: Kept) -> Iterator[str]:
    """Mean scores that nothing was chosen by, where those runs are kept: with fresh seeds, and of another teacher's students."""
    seeds = CONFIRMATION.request.seeds
    runs = {name: f"{CONFIRMATION.name}/{name}" for name in FRESH}
    fresh = all(complete(run, seeds, kept) for run in runs.values())
    others = {
        name: f"{experiment.name}/{variant}"
        for name, (experiment, variant) in OTHERS.items()
        if complete(f"{experiment.name}/{variant}", experiment.request.seeds, kept, HARDER)
    }
    alone = dict.fromkeys(one.candidate.name for one in three if one.candidate.name not in (*(FRESH if fresh else ()), *others))
    yield "\nThe three were chosen by these scores."
    if fresh:
        said = [f"`{name}` {', '.join(f'{mean:.3f}' for mean in means(run, kept))}" for name, run in runs.items()]
        yield f" With new seeds {', '.join(map(str, seeds))} mean scores are: {'; '.join(said)}."
    if alone:
        yield f" {listed([f'`{name}`' for name in alone])} {'were' if len(alone) > 1 else 'was'} scored with "
        yield f"{len(SEEDS)} seeds on this teacher only."
    yield f" Shipped specs without runs: {listed([f'`{name}`' for name in UNTRAINED])}.\n"
    if others:
        yield from _second(others, kept)


def _second(runs: Mapping[str, str], kept: Kept) -> Iterator[str]:
    """The table of the second teacher's students, and of that teacher, the best first."""
    tasks, seeds = listed([f"`{task}`" for task in (*answered(), *HARDER)]), ", ".join(map(str, SEEDS))
    yield "\nStudents of a [second teacher](../evidence/teachers), twice as large and of Qwen3's shape, with seeds "
    yield f"{seeds}. Mean scores over the same lengths: of {tasks}, and of the last {len(HARDER)}, which are harder.\n\n"
    yield "| | all of these tasks | harder ones |\n|---|---:|---:|\n"
    every = {**{f"`{name}`": run for name, run in runs.items()}, "that teacher": f"{SECOND_TEACHER.name}/softmax"}
    both = {name: (means(run, kept, HARDER), means_of(run, kept, HARDER)) for name, run in every.items()}
    for name, (of_all, harder) in sorted(both.items(), key=lambda item: -fmean(item[1][0] or [0.0])):
        if of_all:
            yield f"| {name} | {_spread(of_all)} | {_spread(harder)} |\n"


def _spread(each: Sequence[float]) -> str:
    return f"{fmean(each):.3f}" + (f" ± {spread_of(each):.3f}" if len(each) > 1 else "")


def _training(found: Sequence[Candidate], best: Candidate) -> str:
    """The commands that train a student as all of these were."""
    experiment = EXPERIMENTS[TRAINED]
    said = [" ".join(f"--data {data}" for data in experiment.request.data), f"--share {experiment.request.share:g}"]
    lines = " \\\n        ".join(["", *said, *(f"--set {shlex.quote(setting)}" for setting in experiment.overrides)])
    own = [f"`{one.name}`" for one in found if _has_it(one)]
    with_own = f" The recipes of {listed(own)} have these values; the others need `--set`." if own else ""
    return f"""All specs except `lola`, which needs no training, were trained like this.{with_own}

    compose build {best.path} --from {TEACHER} -o build-output/student
    compose distill build-output/student -o build-output/trained{lines}

"""


def _has_it(one: Candidate) -> bool:
    """Whether the spec's own recipe has these settings. A bound by epochs or tokens is no difference, if steps end the stage before
    it."""
    own, said = (load_spec(one.path, overrides).recipe for overrides in ((), EXPERIMENTS[TRAINED].overrides))
    bounds = {"epochs", "tokens"}
    besides = {"data": True, "transfer": bounds, "finetune": bounds}
    return own is not None and said is not None and own.model_dump(exclude=besides) == said.model_dump(exclude=besides)


def _by_budget(found: Sequence[Candidate], source: Candidate | None) -> Iterator[str]:
    every = [*found, *([source] if source is not None else [])]
    yield "## By budget, length and task\n\n"
    yield "From this state size on, use this spec (score or perplexity in brackets). A larger one is listed only if its score is\n"
    yield f"higher by {BETTER:g} or its perplexity lower by {BETTER:.0%}.\n\n"
    yield "| task | tokens | specs as the budget grows |\n|---|---:|---|\n"
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
    yield "Specs in `evidence/specs` do not ship: build them by their path. There, fine-tuning of `lolcats` also trains its fresh\n"
    yield "parameters, and `lola` and `macchiato-full` have sizes for the small teacher.\n\n"
    yield f"| | state at {LENGTHS[0]:,} | at {LENGTHS[-1]:,} | mean score | {' | '.join(column(*one) for one in columns)} |\n"
    yield f"|---|{'---:|' * (3 + len(columns))}\n"
    for one in [*found, *([source] if source is not None else [])]:
        figures = " | ".join(_figure(one.scores[task][length]) for task, length in columns)
        yield f"| {_link(one)} | {size(one.state(LENGTHS[0]))} | {size(one.state(LENGTHS[-1]))} | {_mean(one)} | {figures} |\n"
    yield "\n"


def _costs(one: Candidate) -> str:
    """Return the text below ``COSTS``, except the spec."""
    cost = one.costs[LENGTHS[-1]]
    return f"{size(cost.state_bytes)} | {_mean(one)} | {cost.fresh_parameters:,} | {cost.decode_flops_per_token:,}"


def _mean(one: Candidate) -> str:
    return _figure(one.score()) + (f" ± {_figure(one.spread)}" if one.spread else "")


def _link(one: Candidate) -> str:
    return f"[{one.name}](../{one.path})"


def _figure(value: float) -> str:
    return f"{value:.2f}" if value < 10 else f"{value:.3g}"
