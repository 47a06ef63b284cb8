"""The page of measurements has the tables of the result files, and lists missing files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.harness import describe_machine, write
from docs.measured import BEGIN, END, MEASUREMENTS, measurements

GOAL = {"goal": "fast", "found": 1.5, "way": "at least", "bound": 2, "verdict": "not met"}
PAGE = f"before\n{BEGIN}old\n{END}after\n"


def test_the_page_is_written_anew() -> None:
    text = MEASUREMENTS.read_text(encoding="utf-8")
    assert measurements(text) == text, "python docs/write.py"


def test_what_was_not_run_is_said(tmp_path: Path) -> None:
    text = measurements(PAGE, tmp_path)
    assert text.startswith(f"before\n{BEGIN}")
    assert text.endswith(f"{END}after\n")
    assert "old" not in text
    assert text.count("it has not been run") == 4
    assert measurements(text, tmp_path) == text


def test_tables_follow_from_the_files(tmp_path: Path) -> None:
    facts = describe_machine("cpu", dtype="bfloat16")
    model = {"model": "teacher", "kind": "prefill", "tokens": 1024, "batch": 1, "failure": None}
    rows = [
        model | {"seconds": {"least": 0.25}, "of_teacher": 1.0, "peak_bytes": 2_000_000},
        model | {"model": "lola", "seconds": None, "of_teacher": None, "failure": "out of memory"},
    ]
    write("whole_models_llama-3.2-1b_cuda", {"about": facts, "rows": rows, "goals": [GOAL]}, tmp_path)
    seconds = {"form": {"least": 0.002}, "by hand": {"least": 0.001}, "attention": {"least": 0.004}}
    row = {"form": "linear", "tokens": 4096, "backward": True, "failure": None, "seconds": seconds}
    late = row | {"tokens": 8192, "failure": "no time left"}
    exact = [{"form": "linear", "error": 0.001, "finite": True}]
    write("forms_cuda", {"about": facts, "rows": [row, late], "errors": exact, "goals": []}, tmp_path)
    head = {"triton": {"least": 0.001}, "torch": {"least": 0.003}, "softmax": None, "apart": 0.0}
    results = {"lola forward 8192": head, "hedgehog": {"failure": "no time left"}}
    own = {"lola": {"error": 0.01, "finite": False}}
    write("own_kernels_cuda", {"about": facts, "rows": results, "errors": own, "goals": [GOAL]}, tmp_path)
    text = measurements(PAGE, tmp_path)
    assert text.count("it has not been run") == 1
    assert "|  | rows × tokens | teacher | lola |\n" in text
    assert "| prefill | 1 × 1,024 | 250 ms, 1.00×, 2 MB | out of memory |\n" in text
    assert "| linear | 4,096 | yes | 2.000 | 2.00 | 2.00 |\n" in text
    assert "| linear | 8,192 | yes | no time left |  |  |\n" in text
    assert "| lola forward 8192 | 1.000 | 3.00 |  |  |\n" in text
    assert "| hedgehog | no time left |  |  |  |\n" in text
    assert "| lola | 1.0e-02 | no |\n" in text
    assert "| fast | 1.5 | at least 2 | not met |\n" in text
    assert facts["device"] in text
    assert json.loads((tmp_path / "forms_cuda.json").read_text())["about"] == facts


def test_a_page_without_the_place_is_told() -> None:
    with pytest.raises(AssertionError, match="has lost"):
        measurements("no table here\n")
