"""What benchmarks have in common: budgets of time, machine and versions, and goals that are met or not."""

from __future__ import annotations

import json
import math
import platform
import statistics
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from rich.console import Console
from rich.table import Table

from composer.benching.trial import NO_ROOM, in_turn
from composer.devices import device_name
from composer.versions import versions_of

RESULTS = Path(__file__).parent / "results"
PACKAGES = ("attention-composer", "torch", "transformers", "triton", "flash-linear-attention")
NO_TIME = "no time left"
"""In the place of what a table's budget does not reach."""
Run = Callable[[], object]
Figures = dict[str, float]


class Budget:
    """So many seconds for a table, counted from when it is made. clock: for tests."""

    def __init__(self, seconds: float, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock, self.seconds = clock, seconds
        self._end = clock() + seconds

    @property
    def left(self) -> float:
        """Seconds; below 0 once they are over."""
        return self._end - self._clock()


def settle_of(device: str) -> Run:
    """What waits for the device."""
    return torch.cuda.synchronize if device.startswith("cuda") else lambda: None


def rounds(runs: Mapping[str, Run], seconds: float, device: str, *, most: int = 20) -> dict[str, Figures | None]:
    """Least and median seconds of runs taken in turn: one round, and further ones until ``seconds`` are over or there are ``most``.

    None for one that ran out of memory.
    """
    budget, taken = Budget(seconds), in_turn(runs, 1, settle_of(device))
    while len(next((of for of in taken.values() if of), [0.0] * most)) < most and budget.left > 0:
        left = {name: run for name, run in runs.items() if taken[name] is not None}
        for name, more in in_turn(left, 1, settle_of(device)).items():
            before = taken[name]
            taken[name] = None if more is None or before is None else before + more
    return {
        name: None if of is None else {"least": min(of), "median": statistics.median(of), "rounds": len(of)}
        for name, of in taken.items()
    }


@dataclass(frozen=True)
class Goal:
    """What a benchmark is meant to reach. found: the figure, or None. bound: what it may be at most, or must be at least."""

    says: str
    found: float | None
    way: Literal["at most", "at least"]
    bound: float

    @property
    def verdict(self) -> str:
        """Whether the goal is met; None without a figure."""
        if self.found is None:
            return "not measured"
        return "met" if (self.found <= self.bound if self.way == "at most" else self.found >= self.bound) else "not met"

    def document(self) -> dict[str, Any]:
        """As the results have it."""
        return {"goal": self.says, "found": self.found, "way": self.way, "bound": self.bound, "verdict": self.verdict}


def worst(figures: Iterable[float | None], way: Literal["at most", "at least"]) -> float | None:
    """The one that a goal fails on first; None where there are none, or one lacks."""
    known = list(figures)
    if not known or any(one is None for one in known):
        return None
    numbers = [one for one in known if one is not None]
    # A number that is none meets nothing.
    if any(math.isnan(one) for one in numbers):
        return math.nan
    return max(numbers) if way == "at most" else min(numbers)


def show_goals(goals: Iterable[Goal], console: Console) -> None:
    """Each goal, what was found, and whether it is met."""
    table = Table("goal", "found", "goal", "")
    for goal in goals:
        table.add_row(goal.says, "" if goal.found is None else f"{goal.found:.3g}", f"{goal.way} {goal.bound:g}", goal.verdict)
    console.print(table)


def about(device: str, **more: Any) -> dict[str, Any]:
    """The machine and the versions."""
    return {
        "device": device_name(device),
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "versions": versions_of(PACKAGES),
        **more,
    }


def write(name: str, result: Mapping[str, Any], folder: Path = RESULTS) -> Path:
    """A result as JSON."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.json"
    path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return path


__all__ = [
    "NO_ROOM",
    "NO_TIME",
    "RESULTS",
    "Budget",
    "Figures",
    "Goal",
    "Run",
    "about",
    "rounds",
    "settle_of",
    "show_goals",
    "worst",
    "write",
]
