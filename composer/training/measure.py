"""How many rows a run evaluates on, and what makes one doubt that it learns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import numpy as np

from composer.data.packing import PackedRows
from composer.spec.recipe import Stage
from composer.training.loop import Outcome, every, length_of

FIFTH = 0.25
"""Rows to evaluate for one to learn from, so that evaluation takes a fifth of a stage where it takes as long as learning."""
MOST_PASSES = 20
"""Times that a stage sees the same tokens before somebody should be told."""
MOST_UNKNOWN = 0.02
"""Share of tokens that stand for what a tokenizer cannot write, before somebody should be told."""


def rows_to_evaluate(stages: Iterable[Stage], rows: PackedRows) -> int:
    """As many held-out rows, of all stages alike, as take at most about a fifth of the time of each."""
    most = []
    for stage in stages:
        steps = length_of(stage, rows)
        most.append(int(FIFTH * steps * stage.batch / (1 + steps // every(stage, steps))))
    return max(1, min(most, default=1))


def some(rows: PackedRows, count: int) -> PackedRows:
    """So many of the rows at most, from all over them."""
    return rows if len(rows) <= count else rows.taken(np.linspace(0, len(rows) - 1, count).round().astype(np.int64))


def seen_too_often(stages: Mapping[str, Stage], rows: PackedRows) -> Iterator[str]:
    """What to say of stages that go through few tokens many times."""
    for name, stage in stages.items():
        passes = length_of(stage, rows) * stage.batch / len(rows)
        if passes > MOST_PASSES:
            yield (
                f"{name} goes through the {rows.tokens:,} tokens of its data {passes:,.0f} times, and may learn them by heart. "
                f"Give it more data, or fewer steps: --set recipe.{name}.steps=…"
            )


def hardly_written(rows: PackedRows, unknown: int | None) -> Iterator[str]:
    """What to say of texts that the tokenizer cannot write. unknown: the token that it has for that; None where it has none."""
    share = float((rows.ids[rows.valid] == unknown).mean()) if unknown is not None and rows.valid.any() else 0.0
    if share > MOST_UNKNOWN:
        yield (
            f"{share:.0%} of the tokens of the data are the one that the tokenizer has for what it cannot write, so they are "
            "hardly there. Take texts that the model's tokenizer can write."
        )


def learned_nothing(outcomes: Iterable[Outcome]) -> Iterator[str]:
    """What to say of stages of which nothing got better on the held-out rows."""
    for outcome in outcomes:
        if outcome.before and all(outcome.after[name] >= before for name, before in outcome.before.items()):
            yield (
                f"{outcome.stage} made nothing better: no loss on the held-out rows came below where it began, and what it began "
                f"with was kept. A lower learning rate may help, or more steps: --set recipe.{outcome.stage}.lr=…"
            )
