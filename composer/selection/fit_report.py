"""The report of a fit: the compositions within a budget of state, and the one that is closest to the source."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from blocks.part import Closed
from composer.reporting.tables import Readable, Table, View
from composer.reporting.words import plural, size
from composer.selection.report import format_found
from composer.spec.inherit import short_path

MOST_EXACT = 1 / 8
"""The part of a row that heads may keep exactly before the report warns."""


class FittedHeads(Closed):
    """The key heads that fit into the budget beside a spec's heads, and how far the student is from the source after a short
    training, or without training where nothing is fresh."""

    name: str
    kept: int
    """Key heads that keep the source's attention."""
    state_bytes: int
    exact_pairs: int
    """The most pairs that a head beside the kept ones keeps exactly."""
    steps: int
    """Of attention transfer, each of one row. 0: the heads have no fresh parameters."""
    divergence: float
    """KL(source ‖ student) in nats per token of the text."""
    answer_divergence: float
    """The same, per token of the answers."""
    answers_found: float
    """The share of the tasks' answers of which every token is the model's first choice, after the true text before it."""
    source_found: float
    """The same share of the source."""
    loss: float
    """`divergence` + `answer_divergence`. The best composition has the smallest."""
    spec_hash: str


class LeftOut(Closed):
    """A composition that was not measured. state_bytes: of its smallest student."""

    name: str
    state_bytes: int
    reason: str


class Fit(Readable, Closed):
    """The compositions within a budget of state, and the spec of the best."""

    teacher: str
    budget: int
    sequence: int
    """Tokens at which states are counted."""
    gates: str
    """The folder of the selection whose key heads are kept."""
    candidates: int
    """Key heads with a gate."""
    tasks: tuple[str, ...]
    rows: int
    """Held-out rows, each of a sample of a task and of text."""
    row_tokens: int
    compositions: tuple[FittedHeads, ...]
    """The best first."""
    left_out: tuple[LeftOut, ...]
    document: dict[str, Any]
    """The spec of the best."""
    out: Path

    def view(self) -> View:
        reasons = tuple((entry.name, size(entry.state_bytes), entry.reason) for entry in self.left_out)
        left_out = [Table("", ("left out", "smallest state", "reason"), reasons)] if reasons else []
        title = f"{short_path(Path(self.teacher))} within {size(self.budget)} of state at {self.sequence:,} tokens"
        return View(title, (_table(self), *left_out), _remarks(self))


def _table(fit: Fit) -> Table:
    headers = ("composition", "key heads kept", "state", "steps", "KL, text", "KL, answers", "sum", "answers found [95 % interval]")
    rows = tuple(
        (
            entry.name,
            f"{entry.kept:,}",
            size(entry.state_bytes),
            f"{entry.steps:,}" if entry.steps else "",
            f"{entry.divergence:.3g}",
            f"{entry.answer_divergence:.3g}",
            f"{entry.loss:.3g}",
            format_found(entry.answers_found, fit.rows),
        )
        for entry in fit.compositions
    )
    return Table("", headers, rows, range(1, len(headers)))


def _remarks(fit: Fit) -> tuple[str, ...]:
    best, *others = fit.compositions
    beside = f"; the next is {others[0].name} with {others[0].loss:.3g}" if others else ""
    near = [entry.name for entry in fit.compositions if entry.exact_pairs > fit.row_tokens * MOST_EXACT]
    longer = (
        f"{', '.join(near)}: windows and caches hold more than an eighth of a row, so longer texts lose more than these "
        "figures show. Longer rows: --row-tokens"
    )
    return (
        f"Best: {best.name} with {plural(best.kept, 'key head')} of {fit.candidates:,}. Its KL(source ‖ student) on text and on "
        f"answers is {best.loss:.3g} nats a token in sum, the smallest{beside}.",
        f"Measured on {plural(fit.rows, 'held-out row')} of {fit.row_tokens:,} tokens, without fine-tuning. Answers of "
        f"{', '.join(fit.tasks)}, of which the source finds {best.source_found:.0%}. Key heads in the order of "
        f"{short_path(Path(fit.gates))}.",
        *([longer] if near else []),
        f"Spec: {short_path(fit.out / 'spec.yaml')}",
    )
