"""`compose sample` writes a complete file that `--data` reads, or none."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from composer.data.loading import load_rows
from tests.composer.cli.conftest import Compose
from tests.composer.programs import ROOT

TEACHER = ROOT / "examples" / "teacher"


def test_sampled_texts_are_read_as_data(compose: Compose) -> None:
    result = compose("sample", TEACHER, "-o", "made/texts.jsonl", "--texts", 5, "--length", 24, "--batch", 3)
    assert result.exit_code == 0, result.output
    lines = Path("made/texts.jsonl").read_text(encoding="utf-8").splitlines()
    assert [list(json.loads(line)) for line in lines] == [["text"]] * 5
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(TEACHER)
    rows = load_rows(["made/texts.jsonl"], tokenizer, 32, split="train", vocabulary=len(tokenizer), share=0.0)
    assert rows.report is not None
    assert rows.report.references[0].documents == 5


def test_sample_writes_texts_of_a_student(compose: Compose, tmp_path: Path) -> None:
    assert compose("build", "lolcats", "--from", TEACHER, "-o", "student").exit_code == 0
    result = compose("sample", "student", "-o", "texts.jsonl", "--texts", 1, "--length", 8, "--batch", 1)
    assert result.exit_code == 0, result.output
    assert sorted(path.name for path in tmp_path.iterdir()) == ["student", "texts.jsonl"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((TEACHER, "-o", "there.jsonl"), "there.jsonl exists"),
        ((TEACHER, "-o", "."), "is a folder"),
        ((TEACHER, "-o", "there.jsonl/texts.jsonl"), "cannot be written"),
        (("nowhere", "-o", "texts.jsonl"), "nowhere"),
    ],
)
def test_invalid_arguments_are_refused(compose: Compose, tmp_path: Path, arguments: tuple[str, ...], message: str) -> None:
    (tmp_path / "there.jsonl").write_text("mine")
    result = compose("sample", *arguments, "--texts", 1, "--length", 8)
    assert result.exit_code == 2
    assert message in " ".join(result.output.split())
    assert "Traceback" not in result.output
    assert [path.name for path in tmp_path.iterdir()] == ["there.jsonl"]
    assert (tmp_path / "there.jsonl").read_text() == "mine"
