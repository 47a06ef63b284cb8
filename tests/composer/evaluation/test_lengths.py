"""Samples that are made to check a task are reused for scoring, up to a number of tokens."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from composer.evaluation import lengths
from composer.evaluation.options import EvaluationOptions
from composer.evaluation.report import EvaluationReport
from composer.evaluation.runner import evaluate
from composer.tasks.base import Sample
from composer.tasks.recall import Recall
from composer.tasks.writer import Writer
from tests.composer.evaluation.conftest import TEACHER

COUNT, SHORT, LONG = 3, 72, 96


def scored(monkeypatch: pytest.MonkeyPatch, most: int, requested_lengths: list[int]) -> tuple[Counter[int], EvaluationReport]:
    """Return the number of samples made for each length with this many tokens kept, and the report."""
    made: list[int] = []
    original = Recall.sample

    def sample(self: Recall, random: Random, writer: Writer, length: int, split: str) -> Sample:
        made.append(length)
        return original(self, random, writer, length, split)  # pyright: ignore[reportArgumentType]

    with monkeypatch.context() as patch:
        patch.setattr(Recall, "sample", sample)
        patch.setattr(lengths, "MOST_KEPT", most)
        report = evaluate([TEACHER], ["recall"], requested_lengths, EvaluationOptions(samples=COUNT))
    return Counter(made), report


def test_each_sample_is_created_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """64 tokens are too few for the task, so that length fails at its first sample."""
    once, kept = scored(monkeypatch, 10**6, [64, SHORT, LONG])
    assert once == {64: 1, SHORT: COUNT, LONG: COUNT}
    some, second = scored(monkeypatch, SHORT, [64, SHORT, LONG])
    assert some == {64: 1, SHORT: 2 * COUNT - 1, LONG: COUNT + 1}
    none, again = scored(monkeypatch, 0, [64, SHORT, LONG])
    assert none == {64: 1, SHORT: 2 * COUNT, LONG: COUNT + 1}
    untimed = [[cell.model_copy(update={"seconds": 0}) for cell in report.cells] for report in (kept, second, again)]
    assert untimed[0] == untimed[1] == untimed[2]
