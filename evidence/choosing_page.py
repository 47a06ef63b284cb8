"""Write docs/choosing.md and its picture: recommended specs for a budget of state, a length and a task."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean

from composer.reporting.words import size
from composer.spec.loading import load_spec
from composer.system.files import write_whole
from evidence.choosing import (
    CHOICES,
    MIN_GAIN,
    STUDENTS,
    Candidate,
    Recommendation,
    choose_by_state,
    column_title,
    compute_means,
    compute_spread,
    compute_task_means,
    find_candidates,
    find_teacher,
    is_complete,
    list_answer_tasks,
    list_tasks,
    recommend,
)
from evidence.experiments import CONFIRMATION, EXPERIMENTS, LENGTHS, SEEDS, TEACHER
from evidence.kept import Run, read_runs
from evidence.page import join_words
from evidence.second import HARDER, SECOND, SECOND_LOLA, SECOND_TEACHER
from evidence.smollm2.budget import build_budget_table
from evidence.smollm2.plan import PLAN, read_plan
from evidence.smollm2.report import models_of
from evidence.smollm2.result import RUNS as SMOLLM2_RUNS
from evidence.verdict import RunFigures

DOCS = Path(__file__).parents[1] / "docs"
PAGE, PLOT = DOCS / "choosing.md", DOCS / "choosing.png"
HEAD = f"""# Which spec to take

The best students without training keep some key heads of the model whole. For 16 MiB and texts of 8,192 tokens:

    compose select streaming --from MODEL --heads --budget 16MiB --seq 8k --data texts.jsonl -o selected
    compose build selected/spec.yaml --from MODEL -o student

This keeps softmax attention in as many key heads as fit into the budget, those that retrieve, and a window with sinks in the others
([select.md](select.md#which-key-heads-to-keep)). `compose explain SPEC --from MODEL --seq 8k` prints the size of one spec's state.

To choose between other heads, train them. Scores before training do not replace this:

- **Text**: the loss after the whole attention transfer orders students as fine-tuning leaves them. For six students of SmolLM2-135M
  (`evidence/smollm2/runs/students`) the rank correlation of held-out losses before and after a fine-tuning of a million tokens or
  more is 1.0. With the loss on WikiText-2 after training it is 0.83.
- **Retrieval**: no short run is known to predict it. On the small teacher, KL to the source on text and answers after 40 steps was
  compared with the trained students' passkeys, for four students. The rank correlation was 0.11: a gated delta rule was last and
  found all passkeys once it was trained.

## By model, state and length

1. **Find your model and length in the table.** Sizes are MiB in bfloat16, at 2,048, 8,192 and 32,768 tokens.
2. **Take the first row of the list below the table whose state fits and that you can train.**

| | SmolLM2-135M | Llama-3.2-1B |
|---|---:|---:|
| the model's own cache | 46, 182, 728 | 64, 257, 1,028 |
| `streaming`, with a fifth of the key heads kept | 10, 38, 147 | 14, 52, 203 |
| `lolcats`, with a fifth of the key heads kept | 17, 44, 154 | 27, 65, 216 |
| `lola`, at each length | 16 | 29 |
| `lolcats`, at each length | 10 | 18 |
| `lawcat`, at each length | 9 | 17 |
| `gated-delta`, at each length | 4 | 8 |
| `streaming`, at each length | 1.5 | 2.1 |

- **A fifth of the cache, facts have to be found**: keep a fifth of the key heads, and `streaming` in the others (`compose select
  streaming --heads --keep 20%`). Nothing is trained. SmolLM2-135M finds 14 of 16 needles at 512 tokens and 12 at 4,096, but 1 of
  6 at 8,192.
- **Less than a fifth, facts have to be found**: keep fewer key heads by `--budget`. With 8 of its 90 key heads SmolLM2-135M finds
  8 of 16 needles at 512 tokens.
- **A state that does not grow, text matters, and you can train on millions of tokens**: `lolcats`. It needs 3.51 nats a token at
  2,048 tokens, after two million tokens of training; a trained window needs 4.01 and the model 3.06. It finds no needles beyond
  its window.
- **A state that does not grow, and facts within a few thousand tokens**: `lola` on the weights of a trained `lolcats`. It finds
  75 % of the passkeys at 2,048 tokens and none at 4,096.
- **Long training is possible, and facts far back have to be found in a state that does not grow**: `lawcat-delta` or `lawcat`,
  which are best on the small teacher below. LAWCAT's paper trains on 93 million tokens. Half a million were too few for
  SmolLM2-135M.
- **A few MiB, no training**: `streaming`. Facts further back than 64 tokens are lost.

The figures are those of [smollm2.md](smollm2.md). No student of a model with a billion parameters was measured: its sizes are
computed, and its quality is unknown.

## On the small teacher

A recommendation for a budget of state, a text length and a task, computed from the runs in `evidence/runs` (experiments
{{experiments}}; [evidence.md](evidence.md) has their commands). `python -m evidence --page` writes this page.

All figures in this section are of students of the small teacher ([examples/teacher](../examples/teacher)), with seeds
{", ".join(map(str, SEEDS))}. They learned from rows of {LENGTHS[0]} tokens; lengths are one, two, four and eight times that. State
is that of `compose explain` for a text of that length. A score is the mean over seeds of the share of right answers ({{tasks}}).
Other figures are perplexity, where lower is better.

"""
CONFIRMATION_VARIANTS = ("lawcat-delta", "lawcat")
"""The variants that ``CONFIRMATION`` scored with new seeds."""
SECOND_STUDENTS = {
    "lawcat-delta": (SECOND, "lawcat-delta"),
    "lawcat": (SECOND, "lawcat-convolution-complete"),
    "lolcats": (SECOND, "lolcats"),
    "macchiato": (SECOND, "macchiato-66"),
    "lola": (SECOND_LOLA, "lola"),
}
"""Students of the second teacher: the experiment and its variant, by the name on the page."""
UNTRAINED = (
    "compressed", "forgetting", "gated-deltanet", "gdn-hybrid", "gdn2-hybrid", "hydrahead", "hypenet", "kda-hybrid", "liger",
    "lizard", "log-linear", "mamba2", "mamba3", "mesa", "moba", "nsa", "retrieval-aware", "rwkv7",
)  # fmt: skip
"""Shipped specs of other papers without runs."""
CLOSE = 0.05
"""If two states differ by a smaller share, their sizes do not decide."""
COSTS = "spec | state at {length:,} | mean score | fresh parameters | operations a token"


def write() -> None:
    """Write both files, each whole or not at all. There is no picture without candidates."""
    from evidence.choosing_plot import draw

    runs = read_runs()
    write_whole(PAGE, format_page(runs))
    candidates, _ = find_candidates(runs)
    if candidates:
        draw(candidates, find_teacher(runs), PLOT)


def format_page(runs: Sequence[Run]) -> str:
    """Return the page as Markdown."""
    return "".join(_format_sections(runs))


def _format_sections(runs: Sequence[Run]) -> Iterator[str]:
    candidates, missing = find_candidates(runs)
    teacher = find_teacher(runs)
    yield HEAD.format(
        experiments=" and ".join(f"`{name}`" for name in CHOICES), tasks=" and ".join(f"`{task}`" for task in list_answer_tasks())
    )
    if candidates:
        yield "### Three recommendations\n\n"
        recommendations = recommend(candidates)
        yield from _format_recommendations(recommendations, teacher)
        yield from _format_difference(recommendations)
        yield from _format_confirmation(recommendations, RunFigures(runs))
        yield "\n![State and mean score of each spec, at once to eight times the training length](choosing.png)\n\n"
        yield "The smallest state is at the top. The line is the best score for each state size, bars are ± a standard deviation "
        yield "over seeds, and the filled ones are the three above.\n\n"
        yield _format_training(candidates, recommendations[-1].candidate)
        yield from _format_budgets(candidates, teacher)
        yield from _format_all(candidates, teacher)
        yield from _format_language_model()
    if missing:
        yield f"{'Not every run is kept yet' if candidates else 'No run is kept yet'} of "
        yield f"{', '.join(f'`{name}`' for name in missing)}: "
        yield "`make evidence` runs what is missing.\n"


def _format_language_model() -> Iterator[str]:
    """Yield the recommendations for SmolLM2-135M, if its students have kept runs."""
    plan = read_plan()
    models = models_of(plan, SMOLLM2_RUNS / PLAN.stem)
    if models:
        yield "## For SmolLM2-135M\n\n"
        yield "Students of a language model after two million tokens of training each (lawcat-passkey: one million, of passkeys) "
        yield "([smollm2.md](smollm2.md)). A model is "
        yield "listed if it is better than the one before it by more than the 95 % interval of the difference on the same rows.\n\n"
        yield build_budget_table(plan, models).markdown()


def _format_recommendations(recommendations: Sequence[Recommendation], teacher: Candidate | None) -> Iterator[str]:
    yield f"| | {COSTS.format(length=LENGTHS[-1])} | chosen by |\n"
    yield "|---|---|---:|---:|---:|---:|---|\n"
    for recommendation in recommendations:
        link, costs = _format_link(recommendation.candidate), _format_costs(recommendation.candidate)
        yield f"| **{recommendation.title}** | {link} | {costs} | {recommendation.rule} |\n"
    if teacher is not None:
        yield f"| | {_format_link(teacher)} | {_format_costs(teacher)} | for comparison: its cache grows with the text |\n"


def _format_difference(recommendations: Sequence[Recommendation]) -> Iterator[str]:
    """Compare the balanced and the best candidate, if their states are close."""
    balanced, best = recommendations[-2].candidate, recommendations[-1].candidate
    share = 1 - balanced.max_state / best.max_state
    if balanced.run == best.run or share >= CLOSE:
        return
    gains = {
        (best.scores[task][length] - balanced.scores[task][length], task, length)
        for task in list_answer_tasks()
        for length in LENGTHS
    }
    _, task, length = max(gains)
    higher, lower = (_format_figure(candidate.scores[task][length]) for candidate in (best, balanced))
    parameters, operations = (_compute_saving(balanced, best, cost) for cost in ("fresh_parameters", "decode_flops_per_token"))
    yield f"\n`{balanced.name}` takes {share:.1%} less state than `{best.name}`. This difference is too small to decide. "
    yield f"`{balanced.name}` has {parameters:.0%} fewer fresh parameters and {operations:.0%} fewer operations per token. "
    yield f"`{best.name}` has the higher score, most of all in {task} at {length:,} tokens ({higher}, not {lower})"
    if best.spread < balanced.spread:
        yield f", and smaller differences between seeds (± {best.spread:.3f}, not ± {balanced.spread:.3f})"
    yield ".\n"


def _compute_saving(candidate: Candidate, reference: Candidate, cost: str) -> float:
    """Return the share by which the candidate's cost is below the reference's."""
    own_cost, reference_cost = (getattr(compared.costs[LENGTHS[-1]], cost) for compared in (candidate, reference))
    return 1 - own_cost / reference_cost


def _format_confirmation(recommendations: Sequence[Recommendation], figures: RunFigures) -> Iterator[str]:
    """Yield mean scores that did not decide the choice, if their runs are kept: with new seeds, and with a second teacher."""
    seeds = CONFIRMATION.request.seeds
    runs = {name: f"{CONFIRMATION.name}/{name}" for name in CONFIRMATION_VARIANTS}
    is_confirmed = all(is_complete(run, seeds, figures) for run in runs.values())
    second_runs = {
        name: f"{experiment.name}/{variant}"
        for name, (experiment, variant) in SECOND_STUDENTS.items()
        if is_complete(f"{experiment.name}/{variant}", experiment.request.seeds, figures, HARDER)
    }
    unconfirmed = dict.fromkeys(
        recommendation.candidate.name
        for recommendation in recommendations
        if recommendation.candidate.name not in (*(CONFIRMATION_VARIANTS if is_confirmed else ()), *second_runs)
    )
    yield "\nThe three were chosen by these scores."
    if is_confirmed:
        texts = [f"`{name}` {', '.join(f'{mean:.3f}' for mean in compute_means(run, figures))}" for name, run in runs.items()]
        yield f" With new seeds {', '.join(map(str, seeds))} mean scores are: {'; '.join(texts)}."
    if unconfirmed:
        yield f" {join_words([f'`{name}`' for name in unconfirmed])} {'were' if len(unconfirmed) > 1 else 'was'} scored with "
        yield f"{len(SEEDS)} seeds on this teacher only."
    yield f" Shipped specs without runs: {join_words([f'`{name}`' for name in UNTRAINED])}.\n"
    if second_runs:
        yield from _format_second_teacher(second_runs, figures)


def _format_second_teacher(runs: Mapping[str, str], figures: RunFigures) -> Iterator[str]:
    """Yield the table of the second teacher and its students, the best first."""
    tasks, seeds = join_words([f"`{task}`" for task in (*list_answer_tasks(), *HARDER)]), ", ".join(map(str, SEEDS))
    yield "\nStudents of a [second teacher](../evidence/teachers), twice as large and of Qwen3's shape, with seeds "
    yield f"{seeds}. Mean scores over the same lengths: of {tasks}, and of the last {len(HARDER)}, which are harder.\n\n"
    yield "| | all of these tasks | harder ones |\n|---|---:|---:|\n"
    runs_by_label = {**{f"`{name}`": run for name, run in runs.items()}, "that teacher": f"{SECOND_TEACHER.name}/softmax"}
    means_by_label = {
        name: (compute_means(run, figures, HARDER), compute_task_means(run, figures, HARDER)) for name, run in runs_by_label.items()
    }
    for name, (all_means, harder_means) in sorted(means_by_label.items(), key=lambda item: -fmean(item[1][0] or [0.0])):
        if all_means:
            yield f"| {name} | {_format_spread(all_means)} | {_format_spread(harder_means)} |\n"


def _format_spread(values: Sequence[float]) -> str:
    return f"{fmean(values):.3f}" + (f" ± {compute_spread(values):.3f}" if len(values) > 1 else "")


def _format_training(candidates: Sequence[Candidate], best: Candidate) -> str:
    """Return the commands that trained the students."""
    experiment = EXPERIMENTS[STUDENTS]
    options = [" ".join(f"--data {data}" for data in experiment.request.data), f"--share {experiment.request.share:g}"]
    lines = " \\\n        ".join(["", *options, *(f"--set {shlex.quote(setting)}" for setting in experiment.overrides)])
    names = [f"`{candidate.name}`" for candidate in candidates if _has_recipe(candidate)]
    names_text = f" The recipes of {join_words(names)} have these values; the others need `--set`." if names else ""
    return f"""`lola` needs no training. All other specs were trained by these commands.{names_text}

    compose build {best.path} --from {TEACHER} -o build-output/student
    compose distill build-output/student -o build-output/trained{lines}

"""


def _has_recipe(candidate: Candidate) -> bool:
    """True if the spec's own recipe has these settings. Limits of epochs and tokens are ignored, as the limit of steps ends a stage
    first."""
    own_recipe, recipe = (load_spec(candidate.path, overrides).recipe for overrides in ((), EXPERIMENTS[STUDENTS].overrides))
    bounds = {"epochs", "tokens"}
    excluded = {"data": True, "transfer": bounds, "finetune": bounds}
    return (
        own_recipe is not None
        and recipe is not None
        and own_recipe.model_dump(exclude=excluded) == recipe.model_dump(exclude=excluded)
    )


def _format_budgets(candidates: Sequence[Candidate], teacher: Candidate | None) -> Iterator[str]:
    rows = [*candidates, *([teacher] if teacher is not None else [])]
    yield "## By budget, length and task\n\n"
    yield "From this state size on, use this spec (score or perplexity in brackets). A larger one is listed only if its score is\n"
    yield f"higher by {MIN_GAIN:g} or its perplexity lower by {MIN_GAIN:.0%}.\n\n"
    yield "| task | tokens | specs as the budget grows |\n|---|---:|---|\n"
    for task in list_tasks():
        for length in LENGTHS:
            texts = (
                f"{size(candidate.state(length))}: {candidate.name} ({_format_figure(candidate.scores[task][length])})"
                for candidate in choose_by_state(rows, task, length)
            )
            yield f"| {task} | {length:,} | {'; '.join(texts)} |\n"
    yield "\n"


def _format_all(candidates: Sequence[Candidate], teacher: Candidate | None) -> Iterator[str]:
    columns = [(task, length) for task in list_tasks() for length in LENGTHS]
    yield "## Every spec\n\n"
    yield "Specs in `evidence/specs` do not ship: build them by their path. There, fine-tuning of `lolcats` also trains its fresh\n"
    yield "parameters, and `lola` and `macchiato-full` have sizes for the small teacher.\n\n"
    titles = " | ".join(column_title(task, length) for task, length in columns)
    yield f"| | state at {LENGTHS[0]:,} | at {LENGTHS[-1]:,} | mean score | {titles} |\n"
    yield f"|---|{'---:|' * (3 + len(columns))}\n"
    for candidate in [*candidates, *([teacher] if teacher is not None else [])]:
        figures = " | ".join(_format_figure(candidate.scores[task][length]) for task, length in columns)
        least, most = (size(candidate.state(length)) for length in (LENGTHS[0], LENGTHS[-1]))
        yield f"| {_format_link(candidate)} | {least} | {most} | {_format_mean(candidate)} | {figures} |\n"
    yield "\n"


def _format_costs(candidate: Candidate) -> str:
    """Return the cells below ``COSTS``, except the spec."""
    cost = candidate.costs[LENGTHS[-1]]
    return f"{size(cost.state_bytes)} | {_format_mean(candidate)} | {cost.fresh_parameters:,} | {cost.decode_flops_per_token:,}"


def _format_mean(candidate: Candidate) -> str:
    return _format_figure(candidate.score()) + (f" ± {_format_figure(candidate.spread)}" if candidate.spread else "")


def _format_link(candidate: Candidate) -> str:
    return f"[{candidate.name}](../{candidate.path})"


def _format_figure(value: float) -> str:
    return f"{value:.2f}" if value < 10 else f"{value:.3g}"
