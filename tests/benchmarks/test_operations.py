"""Each operation of a decode step is counted once, every count gives the same result, and the page shows the kept counts."""

from __future__ import annotations

import json
from pathlib import Path

import composer
from benchmarks.harness import RESULTS
from benchmarks.operations import SPECS, TEACHER, count_operations

PAGE = Path(__file__).parents[2] / "docs" / "measurements.md"


def test_counting_operations_twice_has_equal_results() -> None:
    model = composer.build("gla", TEACHER, dtype="float32").eval()
    assert count_operations(model) == count_operations(model) > 100


def test_the_page_lists_the_counted_operations() -> None:
    counts = json.loads((RESULTS / "operations.json").read_text())["operations"]
    assert list(counts) == ["teacher", *SPECS]
    row = next(line for line in PAGE.read_text().splitlines() if line.startswith("| calls |"))
    counted = [int(cell.replace(",", "")) for cell in row.split("|")[2:-1]]
    assert sorted(counted) == sorted(counts.values())
