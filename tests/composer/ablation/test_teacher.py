"""The teacher's scores are cached by everything that decides them, the contents of files included."""

from __future__ import annotations

from pathlib import Path

import pytest

from composer.ablation import ablate as module
from composer.ablation.ablate import teacher_scores
from composer.ablation.options import Request
from tests.composer.ablation.variants import request_for

TASK = "perplexity 12 perplexity"


def folders(steps: Path) -> set[str]:
    return {path.name for path in steps.iterdir()}


def test_changed_texts_are_scored_again(teacher: Path, texts: Path, tmp_path: Path) -> None:
    """A changed text is scored again. An ablation has no option that replaces an evaluation."""
    steps, here = tmp_path / "steps", tmp_path / "own.txt"
    steps.mkdir()
    here.write_text("once upon a time there was a cat and it slept " * 9)

    def make_request(text: Path) -> Request:
        return request_for(teacher, texts, tasks=("perplexity",), text=text)

    first, failure = teacher_scores(make_request(here), steps)
    assert (list(first), failure) == ([TASK], None)
    assert teacher_scores(make_request(here), steps) == (first, None)
    assert len(folders(steps)) == 1
    here.write_text("a dog ran home and the cat slept there once upon a time " * 9)
    changed, failure = teacher_scores(make_request(here), steps)
    assert failure is None
    assert changed[TASK] != first[TASK]
    assert len(folders(steps)) == 2


def test_other_versions_of_scoring_packages_score_again(
    teacher: Path, texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The versions of the packages that an evaluation records decide."""
    steps = tmp_path / "steps"
    steps.mkdir()
    teacher_scores(request_for(teacher, texts), steps)
    of = module.versions_of
    monkeypatch.setattr(module, "versions_of", lambda packages: {**of(packages), **({"peft": "9"} if "peft" in packages else {})})
    teacher_scores(request_for(teacher, texts), steps)
    assert len(folders(steps)) == 2
