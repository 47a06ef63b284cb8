"""The benchmark of this project's kernels agrees with float64 in Triton's interpreter, and its goals follow from its rows."""

from __future__ import annotations

from typing import Any

import pytest

import tests.interpreter  # noqa: F401
from benchmarks.harness import NO_ROOM, NO_TIME, Budget
from benchmarks.own_kernels import HEADS, LONG, Bench, check_goals, list_tasks, measure_all, measure_errors


@pytest.fixture
def bench() -> Bench:
    return Bench("cpu", quick=True)


@pytest.mark.parametrize("name", HEADS)
def test_heads_lie_close_to_float64(bench: Bench, name: str) -> None:
    deviations = measure_errors(bench, name)
    assert 0 < deviations["error"] < 1e-5
    assert deviations["finite"]


def test_all_take_turns(bench: Bench) -> None:
    planned = list_tasks((24,), (1,))
    assert len(planned) == 9
    rows = measure_all(
        bench,
        {
            name: planned[name]
            for name in (
                "lolcats with backward 24",
                "taps and hedgehog with backward 24",
                "streaming with backward 24",
                "lola decode, batch 1",
            )
        },
    )
    for row in rows.values():
        assert row["apart"] < 1e-5
        assert row["triton"]["least"] > 0
    assert {"triton", "torch", "fla", "softmax"} <= set(rows["lolcats with backward 24"])


def test_what_finds_no_time_or_no_room_says_so(bench: Bench) -> None:
    def full(_: Bench) -> dict[str, Any]:
        raise MemoryError

    assert measure_all(bench, {"one": full}) == {"one": {"failure": NO_ROOM}}
    bench.budget = Budget(-1.0)
    assert measure_all(bench, {"one": full}) == {"one": {"failure": NO_TIME}}


def test_goals() -> None:
    """A kernel is compared with the fastest other way to compute the same head."""
    exact = {"lola": {"error": 1e-3, "finite": True, "long": LONG}}
    rows: dict[str, Any] = {
        "lolcats forward 8192": {"triton": {"least": 1.0}, "torch": {"least": 9.0}, "fla": {"least": 2.1}},
        "lolcats with backward 8192": {"triton": {"least": 1.0}, "torch": {"least": 1.4}, "fla": None},
        "lola forward 8192": {"failure": NO_TIME},
    }
    assert [goal.verdict for goal in check_goals(rows, exact)] == ["met", "not met", "not measured", "met", "met"]
    wrong = {"lola": {"error": 0.03, "finite": False, "long": LONG}}
    assert [goal.verdict for goal in check_goals(rows, wrong)][3:] == ["not met", "not met"]
    assert check_goals(rows, {"lola": {"error": 0.0, "finite": True, "long": 70}})[4].verdict == "not measured"
