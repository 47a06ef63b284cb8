"""How many rows a run evaluates on, and the signs that it does not learn."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from math import ceil

import numpy as np

from composer.data.packing import PackedRows
from composer.spec.recipe import Stage
from composer.training.loop import Outcome, every, length_of
from composer.words import plural

FIFTH = 0.25
"""Evaluated rows per trained row with which evaluation takes a fifth of a stage, if a row takes as long in either."""
MOST_PASSES = 20
"""The number of passes over the same tokens above which a stage warns."""


def rows_to_evaluate(stages: Iterable[Stage], rows: PackedRows) -> int:
    """The number of held-out rows, the same for all stages, whose evaluation takes about a fifth of each stage's time at most."""
    most = []
    for stage in stages:
        steps = length_of(stage, rows)
        most.append(int(FIFTH * steps * stage.batch / (1 + steps // every(stage, steps))))
    return max(1, min(most, default=1))


def some(rows: PackedRows, count: int) -> PackedRows:
    """At most so many of the rows, evenly spaced."""
    return rows if len(rows) <= count else rows.taken(np.linspace(0, len(rows) - 1, count).round().astype(np.int64))


def too_few(stages: Mapping[str, Stage], rows: PackedRows) -> Iterator[str]:
    """The warning for stages whose data do not fill a step, or are repeated many times: the tokens of the data and of the stage."""
    for name, stage in stages.items():
        steps = length_of(stage, rows)
        passes = steps * stage.batch / len(rows)
        if passes <= MOST_PASSES and len(rows) >= stage.batch:
            continue
        most = MOST_PASSES * len(rows) // stage.batch
        needed = max(stage.batch, ceil(steps * stage.batch / MOST_PASSES))
        often = f", and goes through them {passes:,.0f} times: it may learn them by heart" if passes > MOST_PASSES else ""
        fewer = f", or at most {plural(most, 'step')}: --set recipe.{name}.steps={most}" if passes > MOST_PASSES and most else ""
        yield (
            f"{name} has data of {plural(rows.tokens, 'token')} in {plural(len(rows), 'row')}{often}. {plural(steps, 'step')} of "
            f"{plural(stage.batch, 'row')} of {rows.sequence:,} tokens need data of {plural(needed, 'row')}, about "
            f"{needed * rows.sequence:,} tokens, or more. Give it more{fewer}."
        )


def learned_nothing(outcomes: Iterable[Outcome], stages: Mapping[str, Stage], rows: PackedRows) -> Iterator[str]:
    """The warning for stages in which no held-out loss got better."""
    for outcome in outcomes:
        worse = all(outcome.after[name] >= before for name, before in outcome.before.items())
        if outcome.before and worse and any(outcome.after.values()):  # losses of 0 have nothing to gain
            kept = "came below where it began, and what it began with was kept"
            ended = kept if stages[outcome.stage].keep == "best" else "ended below where it began"
            advice = f"A lower learning rate may help, or more steps: --set recipe.{outcome.stage}.lr=…"
            if len(rows) < stages[outcome.stage].batch:
                advice = f"Its data are {plural(rows.tokens, 'token')}, and do not fill a step: give it more."
            yield f"{outcome.stage} made nothing better: no loss on the held-out rows {ended}. {advice}"
