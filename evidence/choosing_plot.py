"""The picture of docs/choosing.md: what each spec keeps, and how it scores, a panel a length."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

from composer.plotting import FAINT, MARK, STUDENT, TEACHER, WIDTH, add_title, label, plotting, save, within_shares
from evidence.choosing import Candidate, recommended
from evidence.experiments import LENGTHS


def draw(found: Sequence[Candidate], source: Candidate | None, target: Path) -> None:
    """A row a spec, the least state first: on the left its state, then its mean score at each length, ± a standard deviation over
    seeds. The recommended ones are filled, and the line is the best score that so much state buys. Raises OSError."""
    taken = {one.candidate.run for one in recommended(found)}
    rows = [*found, *([source] if source is not None else [])]
    with plotting() as pyplot:
        figure, (states, *panels) = pyplot.subplots(
            1, 1 + len(LENGTHS), figsize=(WIDTH, 1.35 + 0.25 * len(rows)), sharey=True, layout="constrained"
        )
        _states(states, rows, source, taken)
        for axis, length in zip(panels, LENGTHS, strict=True):
            _scores(axis, rows, source, length, taken)
            axis.set(title=f"{length:,} tokens ({length // LENGTHS[0]}×)", xlabel="right answers", xlim=(-0.03, 1.06))
            axis.set_xticks((0, 0.5, 1), ("0", "0.5", "1"))
        for axis in (states, *panels):
            axis.grid(alpha=0.3)
        states.set_yticks(range(len(rows)), [label(one.name) for one in rows])
        states.set_ylim(max(len(rows), 1) - 0.5, -0.5)
        add_title(figure, "Students of the small teacher: state, and passkeys and values found, ± a standard deviation over seeds")
        save(figure, target)


def _look(one: Candidate, source: Candidate | None, taken: set[str]) -> dict[str, Any]:
    """The marker of a row."""
    if source is not None and one.run == source.run:
        return {"color": TEACHER, "marker": "x", "markersize": 6}
    colour = MARK if one.run in taken else STUDENT
    return {"color": colour, "marker": "o", "markersize": 6, "markerfacecolor": colour if one.run in taken else "white"}


def _states(axis: Any, rows: Sequence[Candidate], source: Candidate | None, taken: set[str]) -> None:
    """From the shortest length to the longest: a point where it does not grow. Its figure stands beside it."""
    for row, one in enumerate(rows):
        least, most = (one.state(length) / 1024 for length in (LENGTHS[0], LENGTHS[-1]))
        axis.plot((least, most), (row, row), linewidth=1.2, **_look(one, source, taken))
        if least == most:
            axis.annotate(f"{most:,.1f}", (most, row), xytext=(7, 0), textcoords="offset points", va="center", fontsize=8)
    axis.set_xscale("log", base=2)
    axis.set(title="state of a text, KiB", xlabel=f"at {LENGTHS[0]:,} to {LENGTHS[-1]:,} tokens", xlim=(24, 3000))
    ticks = (32, 256, 2048)
    axis.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
    axis.minorticks_off()


def _scores(axis: Any, rows: Sequence[Candidate], source: Candidate | None, length: int, taken: set[str]) -> None:
    students = [one for one in rows if one is not source]
    if students:
        bought = list(accumulate((one.score(length) for one in students), max))
        axis.step(bought, range(len(students)), where="pre", color=FAINT, linewidth=1, zorder=1)
    for row, one in enumerate(rows):
        score = one.score(length)
        spread = [[end] for end in within_shares(score, one.spreads[length])] if one.spreads[length] else None
        axis.errorbar(score, row, xerr=spread, capsize=2.5, elinewidth=1.2, zorder=3, **_look(one, source, taken))
    axis.tick_params(axis="y", length=0)
