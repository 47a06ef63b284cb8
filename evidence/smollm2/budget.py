"""Which model of the plan to take for a budget of state: for tasks, text and retrieval."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from composer.tables import Table
from evidence.smollm2.plan import Plan
from evidence.smollm2.report import Model, difference, harness_columns, retrieval_columns, text_columns


def budget_table(plan: Plan, models: Sequence[Model]) -> Table:
    """A row for each use, with the models to take as the state grows.

    A model is listed if it is better than the one before it on the same rows, by more than the 95 % interval of a paired bootstrap.
    """
    assert plan.text is not None
    length = max(plan.text.lengths)
    retrieval = list(retrieval_columns(plan, length).values())
    uses = {
        "tasks of lm-eval, share of right answers": (list(harness_columns(plan).values()), 1),
        f"text of {length:,} tokens, nats a token": ([text_columns(plan)[f"{length:,}"]], -1),
        f"retrieval at {length:,} tokens, share of right answers": (retrieval, 1),
    }
    rows = []
    for use, (columns, sign) in uses.items():
        scored = []
        for model in models:
            scores = [model.rows(column) for column in columns]
            if all(one is not None for one in scores):
                scored.append(
                    (model.results[0].state_bytes[length], model.name, np.concatenate([one for one in scores if one is not None]))
                )
        rows.append((use, "; ".join(_as_it_grows(sorted(scored, key=lambda entry: entry[:2]), sign))))
    return Table(f"By the state of a text of {length:,} tokens", ("", "models, as the state grows"), tuple(rows))


def _as_it_grows(scored: Sequence[tuple[int, str, np.ndarray]], sign: int) -> list[str]:
    best, words = None, []
    for state, name, rows in scored:
        if best is None or difference(sign * rows, sign * best)[1] > 0:
            best = rows
            words.append(f"{state / 2**20:,.1f} MiB: {name} ({rows.mean():.2f})")
    return words
