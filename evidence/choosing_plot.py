"""The picture of docs/choosing.md: the state and the score of each spec, with a panel for each length."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

from composer.reporting.plotting import FAINT, MARK, STUDENT, TEACHER, WIDTH, add_title, label, plotting, save, within_shares
from evidence.choosing import Candidate, recommend
from evidence.experiments import LENGTHS


def draw(candidates: Sequence[Candidate], teacher: Candidate | None, target: Path) -> None:
    """Draw a row for each spec, the smallest state first: its state, then its mean score ± a standard deviation at each length.

    Markers of recommended specs are filled. A line is the best score up to each size of state. Raises OSError.
    """
    recommended_runs = {recommendation.candidate.run for recommendation in recommend(candidates)}
    rows = [*candidates, *([teacher] if teacher is not None else [])]
    with plotting() as pyplot:
        figure, (states, *panels) = pyplot.subplots(
            1, 1 + len(LENGTHS), figsize=(WIDTH, 1.35 + 0.25 * len(rows)), sharey=True, layout="constrained"
        )
        _draw_states(states, rows, teacher, recommended_runs)
        for axis, length in zip(panels, LENGTHS, strict=True):
            _draw_scores(axis, rows, teacher, length, recommended_runs)
            axis.set(title=f"{length:,} tokens ({length // LENGTHS[0]}×)", xlabel="right answers", xlim=(-0.03, 1.06))
            axis.set_xticks((0, 0.5, 1), ("0", "0.5", "1"))
        for axis in (states, *panels):
            axis.grid(alpha=0.3)
        states.set_yticks(range(len(rows)), [label(candidate.name) for candidate in rows])
        states.set_ylim(max(len(rows), 1) - 0.5, -0.5)
        add_title(figure, "Students of the small teacher: state, and passkeys and values found, ± a standard deviation over seeds")
        save(figure, target)


def _style_marker(candidate: Candidate, teacher: Candidate | None, recommended_runs: set[str]) -> dict[str, Any]:
    """Return the style of a row's marker."""
    if teacher is not None and candidate.run == teacher.run:
        return {"color": TEACHER, "marker": "x", "markersize": 6}
    colour = MARK if candidate.run in recommended_runs else STUDENT
    return {
        "color": colour,
        "marker": "o",
        "markersize": 6,
        "markerfacecolor": colour if candidate.run in recommended_runs else "white",
    }


def _draw_states(axis: Any, rows: Sequence[Candidate], teacher: Candidate | None, recommended_runs: set[str]) -> None:
    """Draw the state from the shortest length to the longest. A constant state is a point with its size beside it."""
    for row, candidate in enumerate(rows):
        least, most = (candidate.state(length) / 1024 for length in (LENGTHS[0], LENGTHS[-1]))
        axis.plot((least, most), (row, row), linewidth=1.2, **_style_marker(candidate, teacher, recommended_runs))
        if least == most:
            axis.annotate(f"{most:,.1f}", (most, row), xytext=(7, 0), textcoords="offset points", va="center", fontsize=8)
    axis.set_xscale("log", base=2)
    axis.set(title="state of a text, KiB", xlabel=f"at {LENGTHS[0]:,} to {LENGTHS[-1]:,} tokens", xlim=(24, 3000))
    ticks = (32, 256, 2048)
    axis.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
    axis.minorticks_off()


def _draw_scores(axis: Any, rows: Sequence[Candidate], teacher: Candidate | None, length: int, recommended_runs: set[str]) -> None:
    students = [candidate for candidate in rows if candidate is not teacher]
    if students:
        best_scores = list(accumulate((candidate.score(length) for candidate in students), max))
        axis.step(best_scores, range(len(students)), where="pre", color=FAINT, linewidth=1, zorder=1)
    for row, candidate in enumerate(rows):
        score = candidate.score(length)
        spread = [[end] for end in within_shares(score, candidate.spreads[length])] if candidate.spreads[length] else None
        axis.errorbar(
            score, row, xerr=spread, capsize=2.5, elinewidth=1.2, zorder=3, **_style_marker(candidate, teacher, recommended_runs)
        )
    axis.tick_params(axis="y", length=0)
