"""`compose bench` prints tables or JSON, and refuses mistakes in one message."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import rich.console

from composer.benching.options import BenchProgress
from composer.commands import bench as bench_module
from tests.composer.cli.conftest import Compose

QUICK = ("--repeats", "1", "--steps", "1")


def test_bench_prints_tables_on_stdout_and_progress_on_stderr(compose: Compose, teacher: Path, student: Path) -> None:
    result = compose("bench", teacher, student, "--prefill", "16,8", "--decode", "8", *QUICK)
    assert result.exit_code == 0, result.output
    words = [" ".join(line.split()) for line in result.stdout.splitlines()]
    assert "prefill, batch 1: one pass over a prompt of so many tokens" in words
    assert "tokens model speed median fastest slowest tokens/s state" in words
    assert [line.split()[:3] for line in words if line.startswith(("8 ", "16 "))][0::2] == [
        *(["8", words[2].split()[0], "1.00×"], ["16", words[2].split()[0], "1.00×"], ["8", words[2].split()[0], "1.00×"]),
    ]
    assert any(line.startswith("On a CPU, ") for line in words)
    assert result.stderr.splitlines() == ["0/3  prefill 8", "1/3  prefill 16", "2/3  decode 8"]
    assert os.listdir() == []


def test_json_is_the_report(compose: Compose, teacher: Path) -> None:
    options = ["--prefill", "1k", "--batch", "2,1", "--seed", 5, "--dtype", "float64", "--threads", 2, "--repeats", 1, "--steps", 3]
    result = compose("bench", teacher, *options, "--json", "-o", "deep/out")
    assert (result.exit_code, result.stderr) == (0, "")
    report = json.loads(result.stdout)
    assert report == json.loads(Path("deep/out/bench.json").read_text())
    setting = report["setting"]
    assert (setting["prefill"], setting["batches"], setting["seed"]) == ([1024], [1, 2], 5)
    assert (setting["threads"], setting["repeats"], setting["steps"]) == (2, 1, 3)
    assert setting["models"][0]["dtype"] == "float64"
    assert sorted(os.listdir("deep/out")) == ["bench.json", "prefill.png", "table.md"]
    again = compose("bench", teacher, "--decode", "8", *QUICK, "-o", "deep/out")
    assert (again.exit_code, "--force" in again.stderr) == (2, True)
    forced = compose("bench", teacher, "--decode", "8", *QUICK, "-o", "deep/out", "--force")
    assert forced.exit_code == 0
    assert forced.stdout.endswith("Report, table and plots: deep/out\n")
    assert sorted(os.listdir("deep/out")) == ["bench.json", "decode.png", "table.md"]


MISTAKES: dict[str, tuple[list[Any], str]] = {
    "no models": (["--prefill", "8"], "Missing argument 'MODEL'"),
    "nothing to time": (["TEACHER"], "There is nothing to time"),
    "a length": (
        ["TEACHER", "--prefill", "8,1q"],
        'such as 512,4k, where 4k is 4,096, got "1q"',
    ),
    "a position": (["TEACHER", "--decode", "-8"], "--decode: expected a whole number of at least 1, got -8"),
    "no length": (["TEACHER", "--prefill", "0"], "--prefill: expected a whole number of at least 1, got 0"),
    "no batch": (["TEACHER", "--prefill", "8", "--batch", "0"], "--batch: expected a whole number of at least 1, got 0"),
    "no model": (["nowhere", "--prefill", "8"], "nowhere"),
    "a device": (["TEACHER", "--prefill", "8", "--device", "abacus"], 'no device "abacus"'),
    "a dtype": (["TEACHER", "--prefill", "8", "--dtype", "int8"], "int8"),
    "no repeats": (["TEACHER", "--prefill", "8", "--repeats", "0"], "--repeats"),
    "other files": (["TEACHER", "--prefill", "8", "-o", "full"], "so no bench wrote it"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_are_refused_and_nothing_is_written(compose: Compose, teacher: Path, name: str) -> None:
    Path("full").mkdir()
    (Path("full") / "notes.txt").touch()
    arguments, message = MISTAKES[name]
    result = compose("bench", *(teacher if word == "TEACHER" else word for word in arguments))
    assert result.exit_code == 2, result.output
    assert message in result.stderr
    assert (result.stdout, isinstance(result.exception, SystemExit)) == ("", True)
    assert os.listdir() == ["full"]


def test_progress_is_a_bar_unless_quiet(terminal: rich.console.Console) -> None:
    with bench_module.watching(quiet=False) as watch:
        assert watch is not None
        for done in (0, 3):
            watch(BenchProgress("decode 2,048 × 8", done=done, total=6))
    shown = terminal.export_text()
    assert "decode 2,048 × 8" in shown
    assert "3/6" in shown
    with bench_module.watching(quiet=True) as watch:
        assert watch is None
