"""The page of measurements has the tables of the kept results and says what was not measured. The table of measured forms follows
from the same results.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu_rows import path_of
from composer.graph.measured import TABLE, MeasuredForm
from pages.measured import BEGIN, END, MEASUREMENTS, build_measured_forms, list_verdicts, measurements

PAGE = f"before\n{BEGIN}old\n{END}after\n"
ABOUT = {"device": "GPU A", "python": "3.12.3", "versions": {"torch": "2.11.0"}, "tuned": False}


def write(folder: Path, table: str, *rows: dict[str, Any]) -> None:
    path_of(table, folder).write_text("".join(json.dumps(line) + "\n" for line in ({"about": ABOUT}, *rows)), encoding="utf-8")


def kernel_row(name: str, own: float, without: float, alternative: float | None = None, **more: Any) -> dict[str, Any]:
    row = {"row": name, "size": "1b", "call": "forward", "tokens": 8192, "batch": 1, "form": "in one pass", "head_dim": 64}
    row |= {
        "apart": {"without it": 1e-3},
        "head": {"own": {"least": own}, "without it": {"least": without}, "SDPA": {"least": 1e-6}},
    }
    if alternative is not None:
        row |= {
            "kernel": {"own": {"least": own}, "compiled": {"least": alternative}},
            "apart": {"without it": 1e-3, "compiled": 1e-3},
        }
    return row | more


def test_the_page_and_the_table_are_up_to_date() -> None:
    text = MEASUREMENTS.read_text(encoding="utf-8")
    assert measurements(text) == text, "make docs"
    assert build_measured_forms() == TABLE.read_text(encoding="utf-8"), "make docs"


def test_missing_measurements_are_listed(tmp_path: Path) -> None:
    text = measurements(PAGE, tmp_path)
    assert text.startswith(f"before\n{BEGIN}")
    assert text.endswith(f"{END}after\n")
    assert "old" not in text
    assert text.count("not measured yet") == 4
    assert measurements(text, tmp_path) == text
    assert json.loads(build_measured_forms(tmp_path)) == {"rows": []}


def test_kernels_are_compared_with_the_best_equal_alternative(tmp_path: Path) -> None:
    """The best alternative that computes the same decides; an alternative whose output differs is no figure."""
    rows = [
        kernel_row("good 1b forward 8192", 1e-3, 3e-3, 1.5e-3),
        kernel_row("slow 1b forward 8192", 1e-3, 3e-3, 1.1e-3),
        kernel_row("wrong 1b forward 8192", 1e-3, 3e-3, apart={"without it": 0.3}),
        kernel_row("step 1b decode 16", 1e-3, 2e-3, call="decode", tokens=512, batch=16),
        kernel_row("short 1b forward 2048", 1e-3, 2e-3, tokens=2048),
        {"row": "full 1b forward 8192", "failure": "out of memory"},
    ]
    verdicts = [["good", "1b", "forward", "1.50", ""], ["slow", "1b", "forward", "1.10", "below 1.2"]]
    verdicts += [["step", "1b", "decode, batch 16", "2.00", ""]]
    assert list(list_verdicts(rows)) == verdicts
    write(tmp_path, "kernels", *rows)
    text = measurements(PAGE, tmp_path)
    assert text.count("not measured yet") == 3
    assert "GPU A, Python 3.12.3, torch 2.11.0." in text
    assert "| good 1b forward 8192 | 1.000 | compiled 1.50 | 1.000 | without it 3.00, SDPA 0.00 | 1e-03 |\n" in text
    assert "| full 1b forward 8192 | out of memory |  |  |  |  |\n" in text


def test_forms_are_compared_with_heads_without_them(tmp_path: Path) -> None:
    """Forms are compared with their heads without them, and the smallest speed of several batches counts."""
    steps = [kernel_row(f"step 1b decode {batch}", 1e-3, 1e-3 * batch, call="decode", tokens=512, batch=batch) for batch in (2, 16)]
    wrong = kernel_row("wrong 1b forward 8192", 1e-3, 3e-3, apart={"without it": 0.3}, form="wrong")
    lone = kernel_row("lone 1b forward 8192", 1e-3, 3e-3, form="lone")
    del lone["head"]["without it"]
    backward = kernel_row("x 1b with backward 8192", 2e-3, 1e-3, call="with backward")
    write(tmp_path, "kernels", *steps, wrong, lone, backward, kernel_row("short 1b forward 2048", 1e-3, 2e-3, tokens=2048))
    rows = [MeasuredForm(**row) for row in json.loads(build_measured_forms(tmp_path))["rows"]]
    assert [(row.one_token, row.gradients, row.speed) for row in rows] == [(True, False, 2.0), (False, True, 0.5)]
    assert {(row.form, row.device, row.head_dim) for row in rows} == {("in one pass", "GPU A", 64)}


def test_calls_models_and_training_have_tables(tmp_path: Path) -> None:
    def figures(least: float, launch: float = 1e-4) -> dict[str, float]:
        return {"least": least, "launch": launch}

    write(tmp_path, "calls", {"row": "gla 1b forward 8192", "form": figures(1.1e-3, 2e-4), "by hand": figures(1e-3)})
    shared = {"kind": "decode", "tokens": 512, "batch": 16, "peak_bytes": 2_000_000, "replayed": True}
    models = [
        {"row": f"{name} decode 512 batch 16", "seconds": figures(least), **shared}
        for name, least in (("teacher", 0.4), ("lola", 0.2))
    ]
    models[1]["replayed"] = False
    write(tmp_path, "models", *models, {"row": "lola prefill 8192 batch 1", "failure": "out of memory"})
    write(
        tmp_path,
        "training",
        {"row": "forward", "tokens": 8192, "seconds": figures(0.5)},
        {"row": "transfer lola", "tokens": 8192, "seconds": figures(1.0), "peak_bytes": 3e6},
        {"row": "lora lola", "tokens": 8192, "seconds": {"failure": "out of memory"}},
    )
    text = measurements(PAGE, tmp_path)
    assert "| gla 1b forward 8192 | 1.100 | +10 % | +100 % |\n" in text
    assert "|  | teacher | lola |\n" in text
    assert "| decode 512 batch 16 | 40 tokens/s, 1.00×, 2 MB | 80 tokens/s, 2.00×, 2 MB, no graph |\n" in text
    assert "| prefill 8192 batch 1 |  | out of memory |\n" in text
    assert "| transfer lola | 8,192 | 2.00 | 3 |\n" in text
    assert "| lora lola | out of memory |  |  |\n" in text


def test_pages_without_the_marker_are_refused() -> None:
    with pytest.raises(AssertionError, match="has lost"):
        measurements("no table here\n")
