"""`compose inspect` prints a line per head, or JSON, and rejects mistakes in one message."""

from __future__ import annotations

import json
from pathlib import Path

from tests.composer.cli.conftest import Compose


def test_every_head_has_one_line(compose: Compose, student: Path, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("once upon a time there was a cat and it slept " * 4)
    result = compose("inspect", student, "--text", "text.txt", "--length", 30, "--queries", 4, "-o", "inside")
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert lines[0].endswith("on text, 30 tokens")
    assert lines[1].split() == ["head", "of", "window", "%", "state", "%", "MSE", "KL"]
    assert [line.split()[0] for line in lines[2:10]] == [f"{layer}.{head}" for layer in range(2) for head in range(4)]
    assert lines[-1] == "The page, pictures and numbers: inside/report.html"
    assert Path("inside/report.html").is_file()
    assert result.stderr.splitlines()[0] == "layer 0, head"


def test_json_is_all_that_was_found(compose: Compose, student: Path, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("once upon a time")
    result = compose("inspect", student, "--text", "text.txt", "--alone", "--layers", "-1", "--json")
    assert (result.exit_code, result.stderr) == (0, "")
    findings = json.loads(result.stdout)
    assert [head["layer"] for head in findings["heads"]] == [1]
    assert findings["tokens"] == ["once", "upon", "a", "time"]


def test_invalid_arguments_are_refused(compose: Compose, student: Path) -> None:
    for options, words in (
        (("--text", "missing.txt"), "missing.txt cannot be read as text"),
        (("--layers", "one"), '--layers: expected a whole number, such as 0,1,2, got "one"'),
        (("--tasks", "passkee"), "passkey"),
        (("--tasks", "passkey"), "The tokenizer cannot write"),
        (("--length", "none"), "expected a whole number of at least 2"),
        (("--length", "64,96"), "--length: expected one number of tokens"),
        (("--teacher", "nowhere"), "--alone"),
    ):
        result = compose("inspect", student, *options)
        assert result.exit_code == 2
        assert words in result.stderr
        assert "Traceback" not in result.stderr
    assert compose("inspect", "nowhere").exit_code == 2
