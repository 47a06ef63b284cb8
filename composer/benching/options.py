"""The options of a bench, and its workloads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from composer.errors import BenchError
from composer.graph.lowering import AUTO
from composer.numbers import check_count, check_seed, numbers_of
from converters.trunk import Dtype

REPEATS, STEPS = 5, 32
LARGEST = 2**31
"""The largest length or batch."""


@dataclass(frozen=True)
class BenchProgress:
    """The progress of a bench: the current cell, the number of cells that are done, and of all cells."""

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
    - graph: on a GPU, built models decode by a step that is recorded once, as a CUDA graph, and replayed.
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
    graph: bool = True
    memory: bool = False
    out: Path | None = None
    force: bool = False
    watch: Callable[[BenchProgress], None] | None = None


def ordered(numbers: Sequence[int], option: str) -> tuple[int, ...]:
    """The numbers, each once, the smallest first. Raises BenchError."""
    return tuple(sorted(set(numbers_of(numbers, option, BenchError, most=LARGEST))))


def read_workloads(prefill: Sequence[int], decode: Sequence[int], options: BenchOptions) -> tuple[tuple[int, ...], ...]:
    """Lengths, positions and batches in order. Raises BenchError."""
    if not prefill and not decode:
        raise BenchError("Nothing says what to time: prompts, such as --prefill 1k,4k, or positions, such as --decode 512,4k.")
    if not options.batches:
        raise BenchError("--batch says nothing: give a number of rows, or leave it out for one.")
    for name, number in (("--repeats", options.repeats), ("--steps", options.steps), ("--threads", options.threads)):
        check_count(name, number, BenchError)
    check_seed(options.seed, BenchError)
    return ordered(prefill, "--prefill"), ordered(decode, "--decode"), ordered(options.batches, "--batch")
