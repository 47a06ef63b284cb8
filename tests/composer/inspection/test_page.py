"""The page describes a text without a question, with an answer at its end, and with several answers correctly."""

from __future__ import annotations

import re
from typing import Any

import pytest

import composer
from composer.inspection.findings import Findings
from composer.inspection.folder import page
from composer.inspection.pictures import draw_all
from tests.composer.inspection.conftest import TEACHER


def looked(**options: Any) -> tuple[str, str]:
    """Return the page without pictures, and its text below the first map."""
    findings = composer.inspect(TEACHER, queries=8, **options)
    return page(findings, ()), _map(findings)


def _map(findings: Findings) -> str:
    return next(picture.says for picture in draw_all(findings) if picture.name.startswith("weights"))


def test_texts_without_a_question_have_no_answer() -> None:
    whole, below = looked(text="the cat sat " * 20, length=40)
    assert '<p class="soft">The text:</p>' in whole
    assert "<mark>" not in whole
    assert "answer stands" not in below
    assert "have to say" not in below


@pytest.mark.parametrize("task", ["passkey,depth=0.2", "recall,pairs=2"])
def test_answers_are_at_their_declared_place(task: str) -> None:
    whole, below = looked(tasks=task, length=128)
    assert "The text; its answer, and earlier places of the answer, underlined:" in whole
    assert "<mark>" in whole
    assert "Orange marks: the answer in the text. The query before each token of the answer predicts that token." in below


def test_rows_of_the_model_precede_those_of_its_teacher(lola: Any) -> None:
    findings = composer.inspect(lola, teacher=TEACHER, tasks="passkey", length=96, queries=8)
    rows = re.findall("<th>(.*?)</th>", page(findings, ()))
    assert rows == ["heads", "beside", "text", "lola answers", "teacher answers", "weights times values", "written by"]
