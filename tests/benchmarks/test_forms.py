"""The benchmark of forms agrees with fla's functions and float64 in Triton's interpreter, and its goals follow from its rows."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import tests.interpreter  # noqa: F401
from benchmarks import forms
from benchmarks.forms import HEADS, LONG, Size, check_goals, measure, measure_errors
from benchmarks.harness import NO_TIME

SMALL = Size("cpu", 1, 16, torch.float32, 24, 40, 1)


def test_forms_lie_close_to_float64() -> None:
    deviations = measure_errors(SMALL)
    assert [row["form"] for row in deviations] == list(HEADS)
    for row in deviations:
        assert 0 < row["error"] < 1e-5
        assert row["finite"]


def test_all_take_turns() -> None:
    rows = measure(SMALL, 40, 600.0)
    assert [(row["form"], row["backward"]) for row in rows] == [(name, way) for way in (False, True) for name in HEADS]
    for row in rows:
        assert row["difference"] < 1e-5
        assert set(row["seconds"]) == {"form", "by hand", "attention"}


def test_what_finds_no_time_says_so() -> None:
    assert {row["failure"] for row in measure(SMALL, 40, -1.0)} == {NO_TIME}


def test_nothing_is_timed_that_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forms, "run_by_hand", lambda name, of: torch.zeros_like(of["value"]))
    with pytest.raises(SystemExit, match="nothing is timed"):
        measure(SMALL, 24, 600.0)


def row(name: str, tokens: int, form: float, hand: float) -> dict[str, Any]:
    seconds = {"form": {"least": form}, "by hand": {"least": hand}, "attention": {"least": 1.0}}
    return {"form": name, "tokens": tokens, "backward": False, "failure": None, "seconds": seconds}


def verdicts(rows: list[dict[str, Any]], exact: list[dict[str, Any]]) -> list[str]:
    return [goal.verdict for goal in check_goals(rows, exact)]


def test_goals() -> None:
    exact = [{"form": "linear", "error": 1e-3, "finite": True, "long": LONG}]
    fast = [row(name, 4096, 1.04, 1.0) for name in HEADS]
    assert verdicts(fast, exact) == ["met"] * 5
    assert verdicts([*fast, row("linear", 8192, 1.06, 1.0)], exact)[0] == "not met"
    assert verdicts([*fast, row("linear", 2048, 9.0, 1.0)], exact)[0] == "met"
    assert verdicts([*fast, row("linear", 8192, 1.0, 1.0) | {"failure": NO_TIME}], exact)[0] == "not measured"
    assert verdicts(fast, [exact[0] | {"error": 0.03, "finite": False}])[3:] == ["not met", "not met"]
    assert verdicts(fast, [exact[0] | {"long": 40}])[4] == "not measured"
