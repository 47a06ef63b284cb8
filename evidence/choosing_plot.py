"""The picture of docs/choosing.md: mean score over state, a panel a length."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from composer.plotting import FAINT, TEACHER, WIDTH, colour, legend, marker, plotting, save
from evidence.choosing import Candidate, recommended
from evidence.experiments import LENGTHS


def draw(found: Sequence[Candidate], source: Candidate | None, target: Path) -> None:
    """The recommended ones have a ring, and the line is the best score that so much state buys. Raises OSError."""
    with plotting() as pyplot:
        figure, axes = pyplot.subplots(1, len(LENGTHS), figsize=(WIDTH, 3.4), sharex=True, sharey=True, layout="constrained")
        taken = {one.candidate.run for one in recommended(found)}
        for axis, length in zip(axes, LENGTHS, strict=True):
            _panel(axis, found, source, length, taken)
            axis.set(title=f"{length:,} tokens ({length // LENGTHS[0]}×)", xlabel="state of a text, KiB", ylim=(-0.03, 1.05))
            axis.set_xscale("log", base=4)
            axis.xaxis.set_major_formatter("{x:,g}")
            axis.grid(alpha=0.3)
        axes[0].set_ylabel("mean share of right answers")
        legend(figure, *axes, columns=6)
        save(figure, target)


def _panel(axis: Any, found: Sequence[Candidate], source: Candidate | None, length: int, taken: set[str]) -> None:
    bought: list[tuple[float, float]] = []
    for one in sorted(found, key=lambda one: one.state(length)):
        score = one.score(length)
        if not bought or score > bought[-1][1]:
            bought.append((one.state(length) / 1024, score))
    if bought:
        axis.step(*zip(*bought, strict=True), where="post", color=FAINT, linewidth=1)
    for index, one in enumerate(found):
        ring = {"edgecolors": "black", "linewidths": 1.2} if one.run in taken else {"linewidths": 0}
        place = one.state(length) / 1024, one.score(length)
        axis.scatter(*place, s=60, color=colour(index), marker=marker(index), label=one.name, zorder=3, alpha=0.9, **ring)
    if source is not None:
        axis.scatter(
            source.state(length) / 1024, source.score(length), s=40, color=TEACHER, marker="x", label=source.name, zorder=3
        )
