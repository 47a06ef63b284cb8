"""Shared parts of the benchmarks: goals, and results with machine and versions."""

from __future__ import annotations

import json
import math
import platform
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor
from transformers import AutoTokenizer

from composer.system.devices import device_name
from composer.system.versions import versions_of

RESULTS = Path(__file__).parent / "results"
PACKAGES = ("attention-composer", "torch", "transformers", "triton", "flash-linear-attention")


@dataclass(frozen=True)
class Goal:
    """A goal of a benchmark. found: the measured figure, or None. bound: the largest or smallest figure that meets it."""

    says: str
    found: float | None
    way: Literal["at most", "at least"]
    bound: float

    @property
    def verdict(self) -> str:
        """Whether the goal is met, in words."""
        if self.found is None:
            return "not measured"
        return "met" if (self.found <= self.bound if self.way == "at most" else self.found >= self.bound) else "not met"

    def to_json(self) -> dict[str, Any]:
        """Return the goal as JSON."""
        return {"goal": self.says, "found": self.found, "way": self.way, "bound": self.bound, "verdict": self.verdict}


def find_worst(figures: Iterable[float | None], way: Literal["at most", "at least"]) -> float | None:
    """Return the figure that fails a goal first; None if there is none, or if one is missing."""
    all_figures = list(figures)
    numbers = [figure for figure in all_figures if figure is not None]
    if not numbers or len(numbers) < len(all_figures):
        return None
    # NaN meets no goal.
    if any(math.isnan(figure) for figure in numbers):
        return math.nan
    return max(numbers) if way == "at most" else min(numbers)


def read_book(source: str, book: Path, rows: int, tokens: int) -> Tensor:
    """Return the tokens of a book from its 50,000th character on, in rows of this many tokens."""
    ids = AutoTokenizer.from_pretrained(source)(book.read_text(encoding="utf-8")[50_000:90_000])["input_ids"]
    return torch.tensor(ids[: rows * tokens]).view(rows, tokens)


def summarise(samples: list[float]) -> list[float]:
    """Return the median, and the first and the third quartile."""
    first, median, third = statistics.quantiles(samples, n=4, method="inclusive")
    return [median, first, third]


def compute_difference(output: torch.Tensor, reference: torch.Tensor) -> float:
    """Return the largest difference, relative to the largest absolute value of the reference."""
    return ((output.double() - reference.double()).abs().max() / reference.double().abs().max()).item()


def show_goals(goals: Iterable[Goal], console: Console) -> None:
    """Print each goal, the measured figure, and whether it is met."""
    table = Table("goal", "found", "goal", "")
    for goal in goals:
        table.add_row(goal.says, "" if goal.found is None else f"{goal.found:.3g}", f"{goal.way} {goal.bound:g}", goal.verdict)
    console.print(table)


def describe_machine(device: str, **more: Any) -> dict[str, Any]:
    """Return the machine and the versions of the packages."""
    return {
        "device": device_name(device),
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "versions": versions_of(PACKAGES),
        **more,
    }


def write(name: str, result: Mapping[str, Any], folder: Path = RESULTS) -> Path:
    """Write a result as JSON, and return its path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.json"
    path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return path


__all__ = [
    "RESULTS",
    "Goal",
    "compute_difference",
    "describe_machine",
    "find_worst",
    "show_goals",
    "summarise",
    "write",
]
