"""The best models of a plan for a growing budget of state: for tasks, text and retrieval."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from composer.reporting.tables import Table
from evidence.smollm2.plan import Plan
from evidence.smollm2.report import Model, bootstrap_difference, harness_columns, retrieval_columns, text_columns


def build_budget_table(plan: Plan, models: Sequence[Model]) -> Table:
    """Build a table with a row for each use: the recommended models as the state grows.

    A model is listed if it is better than the previous one on the same rows, by more than the 95 % interval of a paired bootstrap.
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
        entries = []
        for model in models:
            scores_by_column = [model.rows(column) for column in columns]
            if all(scores is not None for scores in scores_by_column):
                entries.append(
                    (
                        model.results[0].state_bytes[length],
                        model.name,
                        np.concatenate([scores for scores in scores_by_column if scores is not None]),
                    )
                )
        rows.append((use, "; ".join(_choose_by_state(sorted(entries, key=lambda entry: entry[:2]), sign))))
    return Table(f"By the state of a text of {length:,} tokens", ("", "models, as the state grows"), tuple(rows))


def _choose_by_state(entries: Sequence[tuple[int, str, np.ndarray]], sign: int) -> list[str]:
    best, choices = None, []
    for state, name, rows in entries:
        if best is None or bootstrap_difference(sign * rows, sign * best)[1] > 0:
            best = rows
            choices.append(f"{state / 2**20:,.1f} MiB: {name} ({rows.mean():.2f})")
    return choices
