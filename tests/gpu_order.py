"""A plugin of `make gpu`: tests that never passed on a GPU run first, and those that pass are added to a file at once.

The file has a test's id a line. GPU_TESTS names it; benchmarks/results/gpu_tests.txt is read, too.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

KEPT = Path(__file__).parents[1] / "benchmarks" / "results" / "gpu_tests.txt"
FILE = Path(os.environ.get("GPU_TESTS", KEPT))


def read_passed() -> set[str]:
    """Return the ids of the tests that passed in earlier runs."""
    return {line for path in (KEPT, FILE) if path.exists() for line in path.read_text(encoding="utf-8").splitlines()}


@pytest.hookimpl(trylast=True)  # after all that shuffles
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    passed = read_passed()
    items.sort(key=lambda item: item.nodeid in passed)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Write a test that passed. The workers of pytest-xdist report to the process that started them, which alone writes."""
    if report.when == "call" and report.passed and "PYTEST_XDIST_WORKER" not in os.environ and report.nodeid not in read_passed():
        FILE.parent.mkdir(parents=True, exist_ok=True)
        with FILE.open("a", encoding="utf-8") as file:
            print(report.nodeid, file=file)
