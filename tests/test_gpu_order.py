"""`make gpu` runs tests first that never passed on a GPU, and keeps those that pass."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests import gpu_order


def test_tests_that_never_passed_run_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_order, "KEPT", tmp_path / "kept.txt")
    monkeypatch.setattr(gpu_order, "FILE", tmp_path / "new" / "passed.txt")
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)
    gpu_order.KEPT.write_text("a\n")

    def report(name: str, *, passed: bool = True, when: str = "call") -> Any:
        return SimpleNamespace(nodeid=name, passed=passed, when=when)

    for item in (report("b"), report("b"), report("a"), report("c", passed=False), report("d", when="setup")):
        gpu_order.pytest_runtest_logreport(item)
    assert gpu_order.FILE.read_text() == "b\n"
    items: list[Any] = [SimpleNamespace(nodeid=name) for name in "abcd"]
    gpu_order.pytest_collection_modifyitems(items)
    assert [item.nodeid for item in items] == ["c", "d", "a", "b"]
    monkeypatch.setenv("PYTEST_XDIST_WORKER", "gw0")
    gpu_order.pytest_runtest_logreport(report("d"))
    assert gpu_order.read_passed() == {"a", "b"}
