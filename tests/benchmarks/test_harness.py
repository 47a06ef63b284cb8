"""The harness reports goals as met, missed or not measured, and scripts start."""

from __future__ import annotations

import json
import math
import runpy
import sys
from importlib.machinery import PathFinder
from pathlib import Path

import pytest

from benchmarks.harness import Goal, describe_machine, find_worst, write

SCRIPTS = Path(__file__).parents[2] / "benchmarks"


def test_transfer_py_prints_its_help(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["transfer.py", "--help"])
    monkeypatch.syspath_prepend(SCRIPTS)
    with pytest.raises(SystemExit) as left:
        runpy.run_path(str(SCRIPTS / "transfer.py"), run_name="__main__")
    assert not left.value.code
    assert "--rounds" in capsys.readouterr().out


def test_no_script_has_the_name_of_a_library() -> None:
    """Python searches the folder of a running script first, so a script's name must not hide a library."""
    elsewhere = [path for path in sys.path if path and Path(path).resolve() != SCRIPTS]
    names = {path.stem for path in SCRIPTS.glob("*.py")} - {"__init__"}
    assert "gpu_speed" in names
    assert not [name for name in names if name in sys.builtin_module_names or PathFinder.find_spec(name, elsewhere)]


@pytest.mark.parametrize(
    ("measured", "way", "verdict"),
    [
        (1.05, "at most", "met"),
        (1.06, "at most", "not met"),
        (1.05, "at least", "met"),
        (1.04, "at least", "not met"),
        (math.nan, "at most", "not met"),
        (math.nan, "at least", "not met"),
        (None, "at least", "not measured"),
    ],
)
def test_goals_have_the_expected_verdict(measured: float | None, way: str, verdict: str) -> None:
    goal = Goal("speed", measured, way, 1.05)  # pyright: ignore[reportArgumentType]
    assert goal.verdict == verdict
    assert goal.to_json()["verdict"] == verdict


def test_a_goal_is_judged_by_its_worst_measurement() -> None:
    assert find_worst([1.0, 3.0, 2.0], "at most") == 3.0
    assert find_worst([1.0, 3.0, 2.0], "at least") == 1.0
    assert find_worst([1.0, None], "at least") is None
    assert find_worst([], "at most") is None
    assert math.isnan(find_worst([1.0, math.nan, 0.5], "at most") or 0.0)


def test_results_contain_machine_and_versions(tmp_path: Path) -> None:
    path = write("made-up", {"about": describe_machine("cpu", dtype="float32"), "rows": []}, tmp_path)
    facts = json.loads(path.read_text())["about"]
    assert facts["device"]
    assert facts["dtype"] == "float32"
    assert {"torch", "transformers"} <= set(facts["versions"])
