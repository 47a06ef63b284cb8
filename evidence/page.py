"""Write docs/evidence.md with the verdicts, its picture, and docs/reference/evidence.md with the figures, from the kept runs."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import get_args

from composer.reporting.plotting import FAINT, RESOLUTION, WIDTH, add_title, colour, legend, marker, plotting, within_shares
from composer.reporting.plotting import TEACHER as TEACHER_COLOUR
from composer.system.files import whole_file, write_whole
from evidence import collapse, listops, selecting, speed
from evidence.ablations import ABLATIONS
from evidence.claims import CLAIMS, INTRODUCTIONS, PAPERS, ours
from evidence.claims.claim import PASSKEY, RECALL, STORIES, TEACHER, TIMES, Claim
from evidence.experiments import SEEDS
from evidence.kept import Run, read_runs
from evidence.verdict import STATE_LABELS, Place, RunFigures, Verdict, judge_claim, judge_expectation, judge_seeds

MISSING, WAITING = "runs are missing", "waiting for runs"
DOCS = Path(__file__).parents[1] / "docs"
PAGE, PLOT, FIGURES = DOCS / "evidence.md", DOCS / "evidence.png", DOCS / "reference" / "evidence.md"

PAPER_STUDENTS = ours.PAPER_STUDENTS
OWN_STUDENTS = {
    name: f"students/{name}"
    for name in ("alternating-delta", "alternating-kda", "alternating-lawcat", "gated-delta", "lawcat-delta", "divided", "cached")
}

COMPOSITIONS = {
    "alternating-delta": "windows with the teacher's attention and positions in every other layer. The other layers have a gated "
    "delta rule behind LAWCAT's convolution and map, without positions. It ships.",
    "alternating-kda": "the same with Kimi Delta Attention, which decays each channel by itself.",
    "alternating-lawcat": "the same with LAWCAT's state.",
    "lawcat-delta": "the delta rule of alternating-delta in every layer. It ships.",
    "gated-delta": "a gated delta rule in every layer, with ReLU as its map and an output gate.",
    "divided": "windows in half of each layer's heads, LAWCAT's state in the others.",
    "cached": "LoLA's window, sparse cache and state behind LAWCAT's convolution, map and gate.",
}
"""Descriptions of this project's compositions."""

HEAD = """# Evidence

This page tests the papers' claims at a small scale. The [figures of each claim](reference/evidence.md) have a page of their own.
`make evidence` does the runs that are missing in `evidence/runs` and writes both pages; `python -m evidence --page` only writes
them.

- The teacher ([examples/teacher](../examples/teacher)) has 474,496 parameters and two layers, and was trained on 256 tokens.
- Students learn from 12,800 rows of 256 tokens (128 in `transfer`): 3,200 in attention transfer, 9,600 in fine-tuning. `macchiato`
  uses all rows in fine-tuning.
- Figures are means over seeds {seeds}, unless the text names others, ± the standard deviation (n - 1). The teacher has one value.
  No seed was left out.
- Passkey and recall are shares of right answers. Everything else is perplexity, where lower is better. Lengths are in tokens.

Each claim has expectations, listed below its figures on the other page. An expectation holds (*yes*), fails (*no*), or is
*open*: seeds differ, or two figures are equal.

| verdict | meaning |
|---|---|
| reproduced | every expectation holds with every seed |
| not reproduced | at least one expectation fails with every seed; its direction may still be the paper's |
| not at this scale | no expectation fails with every seed, but some are open |

The numbers in brackets count the expectations that hold. Expectations *beyond the paper* do not count.

"""


FIGURES_HEAD = """# Figures of the evidence

The figures of every claim in [evidence.md](../evidence.md), which explains the verdicts, and the commands of all runs.
"""


def write() -> None:
    """Write all files, each whole or not at all."""
    runs = read_runs()
    write_whole(PAGE, format_page(runs))
    write_whole(FIGURES, format_figures(runs))
    draw(RunFigures(runs), PLOT)


def format_page(runs: Sequence[Run]) -> str:
    """Return the page of verdicts as Markdown."""
    return "".join(_format_verdicts(RunFigures(runs)))


def format_figures(runs: Sequence[Run]) -> str:
    """Return the page of figures as Markdown."""
    return "".join(_format_sections(RunFigures(runs), runs))


def _format_verdicts(figures: RunFigures) -> Iterator[str]:
    yield HEAD.format(seeds=", ".join(map(str, SEEDS)))
    own_groups = [group for group in CLAIMS if group not in PAPERS]
    yield f"From the papers, {count_claims(PAPERS, figures)}. "
    yield f"From this project, also with other teachers, {count_claims(own_groups, figures)}.\n\n"
    yield "| claim | paper | here |\n|---|---|---|\n"
    for claims in CLAIMS.values():
        for claim in claims:
            title = f"[{claim.title}](reference/evidence.md#{_make_anchor(claim.title)})"
            yield f"| {title} | {claim.reference} | {_format_outcome(claim, figures)} |\n"
    yield "\n![Scores over length, once to eight times the training length](evidence.png)\n"


def _format_sections(figures: RunFigures, runs: Sequence[Run]) -> Iterator[str]:
    yield FIGURES_HEAD
    for paper, claims in CLAIMS.items():
        yield f"\n## {paper}\n"
        if paper in INTRODUCTIONS:
            yield f"\n{INTRODUCTIONS[paper]}"
        for claim in claims:
            yield from _format_claim(claim, figures)
    yield from _format_scores(figures)
    yield from _format_runs(runs)


def _format_claim(claim: Claim, figures: RunFigures) -> Iterator[str]:
    verdict = judge_claim(claim.expectations, figures).capitalize()
    yield f"\n### {claim.title}\n\n**{verdict}** ({claim.reference}). {claim.statement}\n\n"
    yield format_table(claim.rows, claim.columns, figures)
    if claim.remark:
        yield f"\n{claim.remark}\n"
    yield "\n| expected | holds | seeds |\n|---|---|---|\n"
    for expectation in claim.expectations:
        outcomes = judge_seeds(expectation, figures).values()
        text = f"{expectation.text} (beyond the paper)" if expectation.is_beyond_paper else expectation.text
        label = STATE_LABELS[judge_expectation(expectation, figures)]
        yield f"| {text} | {label} | {sum(holds is True for holds in outcomes)} of {len(outcomes)} |\n"
    experiments = dict.fromkeys(run.partition("/")[0] for run in claim.rows.values())
    yield f"\nRuns: {join_words([f'`{name}`' for name in experiments])}.\n"


def count_claims(groups: Iterable[str], figures: RunFigures) -> str:
    """Count the claims of groups, in total and by verdict."""
    counts = Counter(judge_claim(claim.expectations, figures) for group in groups for claim in CLAIMS[group])
    texts = (f"{counts[name]} {WAITING if name == MISSING else name}" for name in get_args(Verdict) if counts[name])
    return f"{counts.total()} claims: {', '.join(texts)}"


def _format_outcome(claim: Claim, figures: RunFigures) -> str:
    """Return the verdict on a claim, and how many of its expectations hold."""
    expectations = [expectation for expectation in claim.expectations if not expectation.is_beyond_paper]
    holds = sum(judge_expectation(expectation, figures) == "holds" for expectation in expectations)
    return f"{judge_claim(claim.expectations, figures)} ({holds} of {len(expectations)})"


def _format_scores(figures: RunFigures) -> Iterator[str]:
    yield "\n## Scores of all compositions\n\n"
    yield "All students have the same training, except LoLA: LoLCATs with λ = 32, without further training.\n\n"
    yield from (f"- **{name}**: {layers}\n" for name, layers in COMPOSITIONS.items())
    yield "\n"
    students = {**PAPER_STUDENTS, **OWN_STUDENTS}
    yield format_table(students, PASSKEY + RECALL, figures) + "\n" + format_table(students, STORIES, figures)
    best = rank_students(figures)
    if best:
        yield f"\nMean of all eight scores: {join_words([f'{name} {score:.3f}' for name, score in best])}.\n"


def rank_students(figures: RunFigures) -> list[tuple[str, float]]:
    """Return each student's mean passkey and recall score over seeds, the best first. Students without runs are omitted."""
    scores = {
        name: [value for column in PASSKEY + RECALL for value in figures.get_by_seed(Place(run, column)).values()]
        for name, run in {**PAPER_STUDENTS, **OWN_STUDENTS}.items()
    }
    means = {name: statistics.fmean(values) for name, values in scores.items() if values}
    return sorted(means.items(), key=lambda item: -item[1])


def _format_runs(runs: Sequence[Run]) -> Iterator[str]:
    yield "\n## The runs\n\n"
    yield "The commands of `make evidence`, for each seed. `python -m evidence --only NAME` runs one of them. Minutes are of one "
    yield "thread on a shared machine.\n"
    for name, experiment in ABLATIONS.items():
        experiment_runs = [run for run in runs if run.experiment == name]
        seconds = sum(run.seconds for run in experiment_runs)
        yield f"\n`{name}`: {len(experiment_runs)} runs, {seconds / 60:,.0f} minutes.\n\n    "
        yield f"{experiment.command}\n"
        if experiment.make_command is not None:
            yield f"\nThe teacher, made first if it is missing:\n\n    {experiment.make_command}\n"
        if experiment.base is not None:
            base, variant = experiment.base
            yield f"\n`trained-SEED` is the model of `{base.name}/{variant}` after `compose merge`.\n"
    yield from _format_inspections(runs)
    experiment_runs = [run for run in runs if run.experiment == listops.NAME]
    yield f"\n`{listops.NAME}`: {len(experiment_runs)} runs. {listops.SETTING.description}\n\n"
    yield f"    {listops.COMMAND}\n"
    yield from _format_selecting(runs)
    yield f"\n`{speed.NAME}`: {len([run for run in runs if run.experiment == speed.NAME])} runs, without training.\n\n"
    yield "".join(f"    {command}\n" for command in speed.COMMANDS)
    versions = sorted({f"{package} {version}" for run in runs for package, version in run.versions.items()})
    yield f"\nWith {', '.join(versions)}.\n"


def _format_inspections(runs: Sequence[Run]) -> Iterator[str]:
    experiment_runs = [run for run in runs if run.experiment == collapse.NAME]
    yield f"\n`{collapse.NAME}`: {len(experiment_runs)} runs. `MODEL` is trained first if it is missing.\n\n"
    for inspection in collapse.MODELS.values():
        yield f"    {inspection.command}  # {inspection.experiment.name}/{inspection.variant}\n"


def _format_selecting(runs: Sequence[Run]) -> Iterator[str]:
    experiment_runs = [run for run in runs if run.experiment in (selecting.NAME, selecting.TRAINED)]
    setting, seconds = selecting.SETTING, sum(run.seconds for run in experiment_runs)
    yield f"\n`{selecting.NAME}` and `{selecting.TRAINED}`: {len(experiment_runs)} runs, {seconds / 60:,.0f} minutes. Layers are "
    yield f"selected on a [teacher of {setting.layers} layers](../../{setting.source}). Then each choice is trained and scored as "
    yield "`students` are.\n\n"
    yield f"    {setting.command}\n"


def format_table(rows: Mapping[str, str], columns: Sequence[str], figures: RunFigures) -> str:
    """Return a Markdown table of means ± standard deviations over seeds. A dash marks figures without runs."""
    lines = [f"| | {' | '.join(columns)} |", f"|---|{'---:|' * len(columns)}"]
    for name, run in rows.items():
        lines.append(f"| {name} | {' | '.join(format_cell(figures.get_by_seed(Place(run, column))) for column in columns)} |")
    return "\n".join(lines) + "\n"


def format_cell(values_by_seed: Mapping[int, float]) -> str:
    """Return the mean ± standard deviation over seeds, or a dash if there are no values."""
    values = list(values_by_seed.values())
    if not values:
        return "–"
    spread = f" ± {_format_number(statistics.stdev(values))}" if len(values) > 1 else ""
    return _format_number(statistics.fmean(values)) + spread


def _format_number(value: float) -> str:
    return f"{value:.2f}" if value < 10 else f"{value:.3g}" if value < 1000 else f"{value:,.0f}"


def join_words(words: Sequence[str]) -> str:
    """Join words as in "a, b and c"."""
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else list(words))


def _make_anchor(title: str) -> str:
    """Return GitHub's anchor for a heading."""
    return "".join(letter for letter in title.lower().replace(" ", "-") if letter.isalnum() or letter == "-")


def draw(figures: RunFigures, target: Path) -> None:
    """Draw passkey, recall and stories over length, for the teacher, the papers' students and the best own student."""
    best = next((name for name, _ in rank_students(figures) if name in OWN_STUDENTS), None)
    students = PAPER_STUDENTS | ({f"ours: {best}": OWN_STUDENTS[best]} if best else {})
    panels = (
        (PASSKEY, "passkeys found", "share of passkeys"),
        (RECALL, "values recalled", "share of values"),
        (STORIES, "stories", "perplexity"),
    )
    with plotting() as pyplot:
        figure, axes = pyplot.subplots(1, len(panels), figsize=(WIDTH, 3.7), layout="constrained")
        lengths = [int(length.replace(",", "")) for length in TIMES]
        for axis, (columns, title, unit) in zip(axes, panels, strict=True):
            for index, (name, run) in enumerate(students.items()):
                points = [
                    (length, values)
                    for length, column in zip(lengths, columns, strict=True)
                    if (values := list(figures.get_by_seed(Place(run, column)).values()))
                ]
                means = [statistics.fmean(values) for _, values in points]
                spread = [statistics.stdev(values) if len(values) > 1 else 0.0 for _, values in points]
                shares = [within_shares(mean, error) for mean, error in zip(means, spread, strict=True)]
                axis.errorbar(
                    [length for length, _ in points],
                    means,
                    yerr=spread if columns is STORIES else list(zip(*shares, strict=True)),
                    marker=marker(index),
                    markersize=5,
                    capsize=3,
                    label=name,
                    color=TEACHER_COLOUR if run == TEACHER else colour(index - 1),
                    linestyle="--" if run == TEACHER else "-",
                )
            axis.set_xscale("log", base=2)
            axis.set_xticks(lengths, [f"{length:,}" for length in lengths])
            axis.minorticks_off()
            axis.axvline(256, color=FAINT, linewidth=0.8, linestyle=":")
            axis.set(title=title, xlabel="tokens (trained on 256)", ylabel=unit)
            axis.set_ylim(*((1.5, 4) if columns is STORIES else (-0.03, 1.03)))
        add_title(figure, "Students of the small teacher over length: means over seeds, ± a standard deviation")
        legend(figure, axes[0])
        with whole_file(target) as partial:
            figure.savefig(partial, dpi=RESOLUTION, format="png", metadata={"Software": None})
        pyplot.close(figure)
