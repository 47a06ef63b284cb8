"""Passkey answers are classified by the place of the first wrong digit."""

from __future__ import annotations

from pathlib import Path

import pytest

import composer
from evidence.experiments import TEACHER
from evidence.repeats import classify_answer, count_ends


@pytest.mark.parametrize(
    ("key", "written", "end"),
    [
        ("12345", " 12345.", "right"),
        ("17665", "1 7 6 6 5", "right"),
        ("17665", "17656", "after a digit that the key has twice"),
        ("12341", "12343", "after another digit"),
        ("12341", "13412", "after a digit that the key has twice"),
        ("12345", "52345", "first digit"),
        ("12345", "", "first digit"),
        ("12345", "123", "after another digit"),
    ],
)
def test_answers_are_classified_by_their_first_wrong_digit(key: str, written: str, end: str) -> None:
    assert classify_answer(key, written) == end


def test_all_passkeys_of_an_evaluation_are_counted(tmp_path: Path) -> None:
    report = composer.evaluate({"teacher": TEACHER}, ["passkey", "recall,pairs=2"], [128, 256], samples=6, out=tmp_path / "scores")
    counts = count_ends(tmp_path / "scores")
    assert {key: sum(ends.values()) for key, ends in counts.items()} == {("teacher", 128): 6, ("teacher", 256): 6}
    for (model, length), ends in counts.items():
        assert ends["right"] / 6 == pytest.approx(report.cell(model, "passkey", length).mean)
