"""Models alternate, are timed by the clock, and one that runs out of memory leaves the others."""

from __future__ import annotations

import weakref
from collections.abc import Callable

import pytest
import torch

from composer.benching.trial import in_turn


class Clock:
    """A clock that advances only by the time of a run."""

    def __init__(self) -> None:
        self.now, self.heard = 100.0, []

    def run(self, name: str, seconds: float, fails: Callable[[int], BaseException | None] = lambda _: None) -> Callable[[], None]:
        def taken() -> None:
            self.heard.append(name)
            self.now += seconds
            error = fails(self.heard.count(name))
            if error is not None:
                raise error

        return taken


def test_every_round_runs_all_models_in_turn() -> None:
    clock = Clock()
    runs = {"a": clock.run("a", 1.0), "b": clock.run("b", 2.0), "c": clock.run("c", 4.0)}
    assert in_turn(runs, 3, lambda: None, lambda: clock.now) == {"a": [1.0] * 3, "b": [2.0] * 3, "c": [4.0] * 3}
    assert clock.heard == list("abc") * 3


def test_repeated_runs_are_timed_separately() -> None:
    clock = Clock()
    runs = {"a": clock.run("a", 1.0), "b": clock.run("b", 2.0, lambda time: MemoryError() if time == 4 else None)}
    assert in_turn(runs, 5, lambda: None, lambda: clock.now, row=3) == {"a": [1.0] * 5, "b": None}
    assert clock.heard == list("aaabbb" + "aab")


def test_devices_are_synchronised_before_and_after() -> None:
    clock, queued = Clock(), [5.0]

    def settle() -> None:
        while queued:
            clock.now += queued.pop()

    assert in_turn({"a": lambda: queued.append(3.0)}, 2, settle, lambda: clock.now) == {"a": [3.0, 3.0]}


@pytest.mark.parametrize(
    "error", [MemoryError(), torch.OutOfMemoryError("CUDA out of memory."), RuntimeError("can't allocate memory")]
)
def test_models_without_memory_do_not_stop_the_others(error: BaseException) -> None:
    clock = Clock()
    runs = {"a": clock.run("a", 1.0), "b": clock.run("b", 2.0, lambda time: error if time == 2 else None), "c": clock.run("c", 4.0)}
    assert in_turn(runs, 3, lambda: None, lambda: clock.now) == {"a": [1.0] * 3, "b": None, "c": [4.0] * 3}
    assert clock.heard == list("abcabcac")


def test_other_errors_are_raised() -> None:
    with pytest.raises(RuntimeError, match="shapes"):
        in_turn({"a": Clock().run("a", 1.0, lambda _: RuntimeError("shapes"))}, 1, lambda: None)


def test_results_of_a_run_are_freed_before_the_next() -> None:
    held: list[weakref.ref[object]] = []

    class Large:
        pass

    def run() -> Large:
        assert all(reference() is None for reference in held)
        large = Large()
        held.append(weakref.ref(large))
        return large

    in_turn({"a": run, "b": run}, 2, lambda: None)
    assert len(held) == 4


def test_memory_of_a_failed_run_is_freed_before_the_next() -> None:
    held = []

    def full() -> None:
        large = torch.zeros(4)
        held.append(weakref.ref(large))
        large.cycle = large  # pyright: ignore[reportAttributeAccessIssue]
        raise torch.OutOfMemoryError("CUDA out of memory.")

    def after() -> None:
        assert held[0]() is None

    assert in_turn({"a": full, "b": after}, 1, lambda: None)["a"] is None
    assert len(held) == 1
