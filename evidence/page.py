"""Writes docs/evidence.md and its picture from the kept runs."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import get_args

from composer.files import whole, write_whole
from composer.plotting import FAINT, RESOLUTION, WIDTH, colour, legend, marker, plotting, titled, within_shares
from composer.plotting import TEACHER as TEACHER_COLOUR
from evidence import collapse, listops, selecting, speed
from evidence.ablations import ABLATIONS
from evidence.claims import CLAIMS, PAPERS, ours
from evidence.claims.claim import PASSKEY, RECALL, STORIES, TEACHER, TIMES, Claim
from evidence.experiments import SEEDS
from evidence.kept import Run, all_runs
from evidence.verdict import BY_STATE, Kept, Place, Verdict, seeds_of, state, verdict

MISSING, WAITING = "runs are missing", "waiting for runs"
DOCS = Path(__file__).parents[1] / "docs"
PAGE, PLOT = DOCS / "evidence.md", DOCS / "evidence.png"

FOUR = ours.PAPERS
OURS = {
    name: f"students/{name}"
    for name in ("alternating-delta", "alternating-kda", "alternating-lawcat", "gated-delta", "lawcat-delta", "divided", "cached")
}

HEAD = """# Evidence

The papers' claims, tried in miniature on the teacher that ships with this project (474,496 parameters, two layers, trained on
256 tokens; [examples/teacher](../examples/teacher)). `make evidence` writes this page: it runs what is not kept in
`evidence/runs`, then compares. Figures are means over seeds {seeds} (others where that is said) ± the standard deviation of a
sample; the teacher, which nothing is drawn for, has one. Passkey and recall are shares of right answers, the rest is perplexity,
where low is good; lengths are in tokens. Students learn from 12,800 rows of 256 tokens: `students` from 3,200 of them in attention
transfer and 9,600 in fine-tuning, `macchiato` from all of them in fine-tuning.
Those of `transfer` learn from as many rows of 128 tokens.

A claim leads one to expect certain things of the figures, and all of them are listed. **Reproduced**: with every seed, all of
them. **Not reproduced**: one of them fails with every seed, be it that the direction is the paper's and the figure is not
reached; the numbers in brackets say how many hold. **Not at this scale**: seeds differ, or there is nothing to tell apart. What
goes beyond the paper's own tasks is marked, and does not count. No seed was left out.

"""


def write() -> None:
    """Writes both files, each whole or not at all."""
    write_whole(PAGE, page())
    draw(Kept(all_runs()), PLOT)


def page() -> str:
    """The page as Markdown."""
    runs = all_runs()
    return "".join(_page(Kept(runs), runs))


def _page(kept: Kept, runs: Sequence[Run]) -> Iterator[str]:
    yield HEAD.format(seeds=", ".join(map(str, SEEDS)))
    others = [group for group in CLAIMS if group not in PAPERS]
    yield f"Of the papers {counted(PAPERS, kept)}. Of other teachers and our own {counted(others, kept)}.\n\n"
    yield "| claim | paper | here |\n|---|---|---|\n"
    for claims in CLAIMS.values():
        for claim in claims:
            yield f"| [{claim.title}](#{_anchor(claim.title)}) | {claim.where} | {_outcome(claim, kept)} |\n"
    for paper, claims in CLAIMS.items():
        yield f"\n## {paper}\n"
        for claim in claims:
            yield from _claim(claim, kept)
    yield from _best(kept)
    yield from _runs_in_words(runs)


def _claim(claim: Claim, kept: Kept) -> Iterator[str]:
    yield f"\n### {claim.title}\n\n{claim.where}: {claim.says}\n\n"
    yield table(claim.rows, claim.columns, kept)
    if claim.remark:
        yield f"\n{claim.remark}\n"
    yield "\n| expected | with every seed | seeds |\n|---|---|---|\n"
    for one in claim.expected:
        found = seeds_of(one, kept).values()
        says = f"{one.says} (beyond the paper)" if one.beyond else one.says
        yield f"| {says} | {BY_STATE[state(one, kept)]} | {sum(held is True for held in found)} of {len(found)} |\n"
    commands = dict.fromkeys(run.partition("/")[0] for run in claim.rows.values())
    yield f"\n**{verdict(claim.expected, kept).capitalize()}.** From {listed([f'`{name}`' for name in commands])}.\n"


def counted(groups: Iterable[str], kept: Kept) -> str:
    """How many claims these groups have, and how many of them have each verdict."""
    found = Counter(verdict(claim.expected, kept) for group in groups for claim in CLAIMS[group])
    says = (f"{found[one]} {WAITING if one == MISSING else one}" for one in get_args(Verdict) if found[one])
    return f"{found.total()} claims: {', '.join(says)}"


def _outcome(claim: Claim, kept: Kept) -> str:
    """The verdict, and how many of the expectations hold."""
    counting = [one for one in claim.expected if not one.beyond]
    holds = sum(state(one, kept) == "holds" for one in counting)
    return f"{verdict(claim.expected, kept)} ({holds} of {len(counting)})"


def _best(kept: Kept) -> Iterator[str]:
    yield "\n## What none of the papers has\n\n"
    yield "Compositions of our own against the four and the teacher, at one to eight times the training length; the same training "
    yield "for all students but LoLA, which is LoLCATs with λ = 32 and learns nothing more.\n\n"
    yield table({**FOUR, **OURS}, PASSKEY + RECALL, kept) + "\n" + table({**FOUR, **OURS}, STORIES, kept)
    best = ranking(kept)
    if best:
        yield f"\nBy the mean of all eight scores: {listed([f'{name} {score:.3f}' for name, score in best])}.\n"
    yield "\n**alternating-delta**, which ships, has layers of near windows (the teacher's own attention, with its positions) and, "
    yield "every other, a gated delta rule behind LAWCAT's convolution and map (without positions); **alternating-kda** "
    yield "(`evidence/specs`) forgets there channel by channel, and **alternating-lawcat** has LAWCAT's state there. "
    yield "**gated-delta** has such a rule in every layer, with ReLU for a map and an output gate; **lawcat-delta**, "
    yield "which ships, has that of alternating-delta. In **divided** half of each layer's heads have near windows, the others "
    yield "LAWCAT's state. **cached** is LoLA's window, sparse cache and state under LAWCAT's convolution, map and gate.\n\n"
    yield "![Scores over length, once to eight times the training length](evidence.png)\n"


def ranking(kept: Kept) -> list[tuple[str, float]]:
    """Each student's mean of all passkey and recall scores, over seeds, the best first; students that lack one are left out."""
    scores = {
        name: [value for column in PASSKEY + RECALL for value in kept.at(Place(run, column)).values()]
        for name, run in {**FOUR, **OURS}.items()
    }
    whole = {name: statistics.fmean(values) for name, values in scores.items() if values}
    return sorted(whole.items(), key=lambda item: -item[1])


def _runs_in_words(runs: Sequence[Run]) -> Iterator[str]:
    yield "\n## The runs\n\n"
    yield "`make evidence` runs what follows, seed by seed. `--only NAME` of `python -m evidence` runs one of them.\n"
    for name, experiment in ABLATIONS.items():
        own = [run for run in runs if run.experiment == name]
        seconds = sum(run.seconds for run in own)
        yield f"\n`{name}`: {len(own)} runs are kept, {seconds / 60:,.0f} minutes of a thread that shared its machine.\n\n    "
        yield f"{experiment.command}\n"
        if experiment.made is not None:
            yield f"\nIts teacher is made first, where it is not there:\n\n    {experiment.made}\n"
        if experiment.trained is not None:
            other, variant = experiment.trained
            yield f"\n`trained-SEED` is `{other.name}/{variant}` of that seed with its adapters folded in (`compose "
            yield "merge`).\n"
    yield from _inspections(runs)
    own = [run for run in runs if run.experiment == listops.NAME]
    yield f"\n`{listops.NAME}`: {len(own)} runs are kept. {listops.SETTING.says}\n\n"
    yield f"    {listops.COMMAND}\n"
    yield from _selecting(runs)
    yield f"\n`{speed.NAME}`: {len([run for run in runs if run.experiment == speed.NAME])} runs are kept. Nothing is trained for "
    yield "it.\n\n"
    yield "".join(f"    {command}\n" for command in speed.COMMANDS)
    versions = sorted({f"{package} {version}" for run in runs for package, version in run.versions.items()})
    yield f"\nWith {', '.join(versions)}.\n"


def _inspections(runs: Sequence[Run]) -> Iterator[str]:
    own = [run for run in runs if run.experiment == collapse.NAME]
    yield f"\n`{collapse.NAME}`: {len(own)} runs are kept. `MODEL` is trained first, where it is not there.\n\n"
    for looked in collapse.MODELS.values():
        yield f"    {looked.command}  # {looked.experiment.name}/{looked.variant}\n"


def _selecting(runs: Sequence[Run]) -> Iterator[str]:
    own = [run for run in runs if run.experiment in (selecting.NAME, selecting.TRAINED)]
    setting, seconds = selecting.SETTING, sum(run.seconds for run in own)
    yield f"\n`{selecting.NAME}` and `{selecting.TRAINED}`: {len(own)} runs are kept, {seconds / 60:,.0f} minutes of training and "
    yield f"scoring. The selection of each seed, on a [teacher of {setting.layers} layers](../{setting.source}); then each choice "
    yield "of layers is trained and scored as `students` are.\n\n"
    yield f"    {setting.command}\n"


def table(rows: Mapping[str, str], columns: Sequence[str], kept: Kept) -> str:
    """Markdown: mean ± standard deviation over seeds; a dash where nothing is kept."""
    lines = [f"| | {' | '.join(columns)} |", f"|---|{'---:|' * len(columns)}"]
    for name, run in rows.items():
        lines.append(f"| {name} | {' | '.join(cell(kept.at(Place(run, column))) for column in columns)} |")
    return "\n".join(lines) + "\n"


def cell(figures: Mapping[int, float]) -> str:
    """Mean ± standard deviation of figures by seed; a dash where there is none."""
    values = list(figures.values())
    if not values:
        return "–"
    spread = f" ± {_number(statistics.stdev(values))}" if len(values) > 1 else ""
    return _number(statistics.fmean(values)) + spread


def _number(value: float) -> str:
    return f"{value:.2f}" if value < 10 else f"{value:.3g}" if value < 1000 else f"{value:,.0f}"


def listed(words: Sequence[str]) -> str:
    """a, b and c."""
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else list(words))


def _anchor(title: str) -> str:
    """The anchor that GitHub makes of a heading."""
    return "".join(letter for letter in title.lower().replace(" ", "-") if letter.isalnum() or letter == "-")


def draw(kept: Kept, target: Path) -> None:
    """Draws passkey, recall and stories over length: the teacher, the four papers' students, and the best of ours."""
    best = next((name for name, _ in ranking(kept) if name in OURS), None)
    shown = FOUR | ({f"ours: {best}": OURS[best]} if best else {})
    panels = (
        (PASSKEY, "passkeys found", "share of passkeys"),
        (RECALL, "values recalled", "share of values"),
        (STORIES, "stories", "perplexity"),
    )
    with plotting() as pyplot:
        figure, axes = pyplot.subplots(1, len(panels), figsize=(WIDTH, 3.7), layout="constrained")
        lengths = [int(length.replace(",", "")) for length in TIMES]
        for axis, (columns, title, unit) in zip(axes, panels, strict=True):
            for index, (name, run) in enumerate(shown.items()):
                found = [
                    (length, values)
                    for length, column in zip(lengths, columns, strict=True)
                    if (values := list(kept.at(Place(run, column)).values()))
                ]
                means = [statistics.fmean(values) for _, values in found]
                spread = [statistics.stdev(values) if len(values) > 1 else 0.0 for _, values in found]
                shares = [within_shares(mean, one) for mean, one in zip(means, spread, strict=True)]
                axis.errorbar(
                    [length for length, _ in found],
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
        titled(figure, "Students of the small teacher over length: means over seeds, ± a standard deviation")
        legend(figure, axes[0])
        with whole(target) as partial:
            figure.savefig(partial, dpi=RESOLUTION, format="png", metadata={"Software": None})
        pyplot.close(figure)
