"""Writes docs/evidence.md and its picture from the kept runs."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import get_args

from composer.files import whole, write_whole
from composer.plotting import FAINT, RESOLUTION, WIDTH, add_title, colour, legend, marker, plotting, within_shares
from composer.plotting import TEACHER as TEACHER_COLOUR
from evidence import collapse, listops, selecting, speed
from evidence.ablations import ABLATIONS
from evidence.claims import CLAIMS, INTRODUCTIONS, PAPERS, ours
from evidence.claims.claim import PASSKEY, RECALL, STORIES, TEACHER, TIMES, Claim
from evidence.experiments import SEEDS
from evidence.kept import Run, read_runs
from evidence.verdict import BY_STATE, Kept, Place, Verdict, seeds_of, state, verdict

MISSING, WAITING = "runs are missing", "waiting for runs"
DOCS = Path(__file__).parents[1] / "docs"
PAGE, PLOT = DOCS / "evidence.md", DOCS / "evidence.png"

FOUR = ours.PAPERS
OURS = {
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
"""The compositions of this project that were trained, in words."""

HEAD = """# Evidence

This page tests the papers' claims at a small scale: a table with every claim and its verdict, then the figures of each claim.
`make evidence` does the runs that are missing in `evidence/runs` and writes this page; `python -m evidence --page` only writes it.

- The teacher ([examples/teacher](../examples/teacher)) has 474,496 parameters and two layers, and was trained on 256 tokens.
- Students learn from 12,800 rows of 256 tokens (128 in `transfer`): 3,200 in attention transfer, 9,600 in fine-tuning. `macchiato`
  uses all rows in fine-tuning.
- Figures are means over seeds {seeds}, unless the text names others, ± the standard deviation (n - 1). The teacher has one value.
  No seed was left out.
- Passkey and recall are shares of right answers. Everything else is perplexity, where lower is better. Lengths are in tokens.

Each claim has expectations, listed below its figures. An expectation holds (*yes*), fails (*no*), or is *open*: seeds differ, or
two figures are equal.

| verdict | meaning |
|---|---|
| reproduced | every expectation holds with every seed |
| not reproduced | at least one expectation fails with every seed; its direction may still be the paper's |
| not at this scale | no expectation fails with every seed, but some are open |

The numbers in brackets count the expectations that hold. Expectations *beyond the paper* do not count.

"""


def write() -> None:
    """Writes both files, each whole or not at all."""
    write_whole(PAGE, page())
    draw(Kept(read_runs()), PLOT)


def page() -> str:
    """The page as Markdown."""
    runs = read_runs()
    return "".join(_page(Kept(runs), runs))


def _page(kept: Kept, runs: Sequence[Run]) -> Iterator[str]:
    yield HEAD.format(seeds=", ".join(map(str, SEEDS)))
    others = [group for group in CLAIMS if group not in PAPERS]
    yield f"From the papers, {counted(PAPERS, kept)}. From this project, also with other teachers, {counted(others, kept)}.\n\n"
    yield "| claim | paper | here |\n|---|---|---|\n"
    for claims in CLAIMS.values():
        for claim in claims:
            yield f"| [{claim.title}](#{_anchor(claim.title)}) | {claim.where} | {_outcome(claim, kept)} |\n"
    for paper, claims in CLAIMS.items():
        yield f"\n## {paper}\n"
        if paper in INTRODUCTIONS:
            yield f"\n{INTRODUCTIONS[paper]}"
        for claim in claims:
            yield from _claim(claim, kept)
    yield from _best(kept)
    yield from _runs_in_words(runs)


def _claim(claim: Claim, kept: Kept) -> Iterator[str]:
    yield f"\n### {claim.title}\n\n**{verdict(claim.expected, kept).capitalize()}** ({claim.where}). {claim.says}\n\n"
    yield table(claim.rows, claim.columns, kept)
    if claim.remark:
        yield f"\n{claim.remark}\n"
    yield "\n| expected | holds | seeds |\n|---|---|---|\n"
    for one in claim.expected:
        found = seeds_of(one, kept).values()
        says = f"{one.says} (beyond the paper)" if one.beyond else one.says
        yield f"| {says} | {BY_STATE[state(one, kept)]} | {sum(held is True for held in found)} of {len(found)} |\n"
    commands = dict.fromkeys(run.partition("/")[0] for run in claim.rows.values())
    yield f"\nRuns: {listed([f'`{name}`' for name in commands])}.\n"


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
    yield "\n## Scores of all compositions\n\n"
    yield "All students have the same training, except LoLA: LoLCATs with λ = 32, without further training.\n\n"
    yield from (f"- **{name}**: {layers}\n" for name, layers in COMPOSITIONS.items())
    yield "\n"
    yield table({**FOUR, **OURS}, PASSKEY + RECALL, kept) + "\n" + table({**FOUR, **OURS}, STORIES, kept)
    best = ranking(kept)
    if best:
        yield f"\nMean of all eight scores: {listed([f'{name} {score:.3f}' for name, score in best])}.\n"
    yield "\n![Scores over length, once to eight times the training length](evidence.png)\n"


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
    yield "The commands of `make evidence`, for each seed. `python -m evidence --only NAME` runs one of them. Minutes are of one "
    yield "thread on a shared machine.\n"
    for name, experiment in ABLATIONS.items():
        own = [run for run in runs if run.experiment == name]
        seconds = sum(run.seconds for run in own)
        yield f"\n`{name}`: {len(own)} runs, {seconds / 60:,.0f} minutes.\n\n    "
        yield f"{experiment.command}\n"
        if experiment.make_command is not None:
            yield f"\nThe teacher, made first if it is missing:\n\n    {experiment.make_command}\n"
        if experiment.base is not None:
            other, variant = experiment.base
            yield f"\n`trained-SEED` is the model of `{other.name}/{variant}` after `compose merge`.\n"
    yield from _inspections(runs)
    own = [run for run in runs if run.experiment == listops.NAME]
    yield f"\n`{listops.NAME}`: {len(own)} runs. {listops.SETTING.description}\n\n"
    yield f"    {listops.COMMAND}\n"
    yield from _selecting(runs)
    yield f"\n`{speed.NAME}`: {len([run for run in runs if run.experiment == speed.NAME])} runs, without training.\n\n"
    yield "".join(f"    {command}\n" for command in speed.COMMANDS)
    versions = sorted({f"{package} {version}" for run in runs for package, version in run.versions.items()})
    yield f"\nWith {', '.join(versions)}.\n"


def _inspections(runs: Sequence[Run]) -> Iterator[str]:
    own = [run for run in runs if run.experiment == collapse.NAME]
    yield f"\n`{collapse.NAME}`: {len(own)} runs. `MODEL` is trained first if it is missing.\n\n"
    for inspection in collapse.MODELS.values():
        yield f"    {inspection.command}  # {inspection.experiment.name}/{inspection.variant}\n"


def _selecting(runs: Sequence[Run]) -> Iterator[str]:
    own = [run for run in runs if run.experiment in (selecting.NAME, selecting.TRAINED)]
    setting, seconds = selecting.SETTING, sum(run.seconds for run in own)
    yield f"\n`{selecting.NAME}` and `{selecting.TRAINED}`: {len(own)} runs, {seconds / 60:,.0f} minutes. Layers are "
    yield f"selected on a [teacher of {setting.layers} layers](../{setting.source}). Then each choice is trained and scored as "
    yield "`students` are.\n\n"
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
        add_title(figure, "Students of the small teacher over length: means over seeds, ± a standard deviation")
        legend(figure, axes[0])
        with whole(target) as partial:
            figure.savefig(partial, dpi=RESOLUTION, format="png", metadata={"Software": None})
        pyplot.close(figure)
