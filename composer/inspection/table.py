"""The findings as a table, a line a head."""

from __future__ import annotations

import numpy as np

from composer.inspection.findings import Findings, HeadFindings
from composer.tables import Table


def table_of(found: Findings) -> Table:
    """A row a head, with means over the queries and the tokens of the answer."""
    memories = list(dict.fromkeys(name for head in found.heads for name in head.shares))
    asked = any(head.found.size for head in found.heads)
    headers = ["head", "of", *(f"{name} %" for name in memories)]
    headers += ["on the answer", "teacher's"] if asked else []
    headers += ["MSE", "KL"] if any(head.likeness for head in found.heads) else []
    rows = tuple(tuple(_row(head, index, memories, headers)) for head in found.heads for index in range(head.heads))
    title = f"{found.model} on {found.text}, {len(found.tokens):,} tokens"
    return Table(title, tuple(headers), rows, range(2, len(headers)))


def _row(head: HeadFindings, index: int, memories: list[str], headers: list[str]) -> list[str]:
    shares = [f"{100 * head.shares[name][index].mean():.0f}" if name in head.shares else "" for name in memories]
    row = [f"{head.layer}.{head.first + index}", head.name, *shares]
    if "on the answer" in headers:
        teacher = head.teacher_found
        row += [f"{_mean(head.found[index]):.3f}", "" if teacher is None else f"{_mean(teacher[index]):.3f}"]
    if "MSE" in headers:
        like = head.likeness
        row.append("" if like is None else f"{like.mse[index]:.2g}")
        row.append("" if like is None or like.divergence is None else f"{like.divergence[index]:.2g}")
    return row


def _mean(numbers: np.ndarray) -> float:
    return float(numbers.mean()) if numbers.size else float("nan")
