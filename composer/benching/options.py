"""What a bench is asked for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from composer.errors import BenchError
from composer.graph.lowering import AUTO
from converters.trunk import Dtype

REPEATS, STEPS = 5, 32
LARGEST = 2**31
"""Of any length, batch or seed."""


@dataclass(frozen=True)
class BenchProgress:
    """How far a bench is: what is under way, and how many cells of how many are done."""

    what: str
    done: int
    total: int


@dataclass(frozen=True)
class BenchOptions:
    """How models are timed.

    - batches: rows that go through a model together.
    - repeats: passes over each prompt that are timed.
    - steps: tokens that are decoded and timed at each position.
    - seed: of the tokens.
    - threads: of the CPU.
    - device: where the models run.
    - dtype: of all weights; None leaves them as they are.
    - backend: which forms run the heads of built models.
    - memory: on a CPU, measure peak memory, too, in a process of its own for each model; on a GPU it is always measured.
    - out: the folder of the report; None writes nothing.
    - force: replace the bench in `out`.
    - watch: called with the progress.
    """

    batches: Sequence[int] = (1,)
    repeats: int = REPEATS
    steps: int = STEPS
    seed: int = 0
    threads: int = 1
    device: str = "cpu"
    dtype: Dtype | None = None
    backend: str = AUTO
    memory: bool = False
    out: Path | None = None
    force: bool = False
    watch: Callable[[BenchProgress], None] | None = None


def ordered(numbers: Sequence[int], option: str, of: str) -> tuple[int, ...]:
    """Each once, the smallest first. of: what they count. Raises BenchError."""
    if any(number < 1 for number in numbers):
        raise BenchError(f"{option} {min(numbers)}: say at least 1 {of}.")
    if any(number > LARGEST for number in numbers):
        raise BenchError(f"{option} {max(numbers)}: say at most {LARGEST:,} {of}s.")
    return tuple(sorted(set(numbers)))
