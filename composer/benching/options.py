"""The options of a bench, and its workloads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from composer.errors import BenchError, ComposerError
from composer.options.arguments import numbers_of
from composer.options.classes import option, options_class
from composer.options.shared import (
    OUT,
    BackendOption,
    DeviceOption,
    DtypeOption,
    ForceOption,
    GraphOption,
    SeedOption,
    to_numbers,
    to_optional_path,
)

REPEATS, STEPS = 5, 32
LARGEST = 2**31
"""The largest length or batch."""


@dataclass(frozen=True)
class BenchProgress:
    """The progress of a bench: the current cell, the number of cells that are done, and of all cells."""

    activity: str
    done: int
    total: int


@options_class
class TimingOptions(ForceOption, GraphOption, BackendOption, DtypeOption, DeviceOption, SeedOption):
    """Options of every bench."""

    error: ClassVar[type[ComposerError]] = BenchError
    batch: tuple[int, ...] = option("Rows of a batch, one number or several.", default=1, converter=to_numbers(), metavar="N,…")
    repeats: int = option("Timed passes over each prompt.", default=REPEATS, minimum=1)
    steps: int = option("Timed tokens at each position.", default=STEPS, minimum=1)
    threads: int = option("Threads of the CPU.", default=1, minimum=1)
    memory: bool = option(
        "On a CPU, also measure peak memory, each model in a separate process. On a GPU it is always measured.", default=False
    )
    out: Path | None = option(
        "Folder for the report, tables and plots. Left out, nothing is written.", default=None, converter=to_optional_path, **OUT
    )


@options_class
class BenchOptions(TimingOptions):
    """All options of a bench, beside models and lengths."""

    watch: Callable[[BenchProgress], None] | None = option("Called with the progress.", default=None, is_checked=False)


def order(numbers: Sequence[int], option: str) -> tuple[int, ...]:
    """Return the numbers, each once, the smallest first. Raises BenchError."""
    return tuple(sorted(set(numbers_of(numbers, option, BenchError, maximum=LARGEST))))


def read_workloads(prefill: Sequence[int], decode: Sequence[int], options: TimingOptions) -> tuple[tuple[int, ...], ...]:
    """Lengths, positions and batches in order. Raises BenchError."""
    if not prefill and not decode:
        raise BenchError(
            "There is nothing to time. Set prompt lengths, such as --prefill 1k,4k, or positions, such as --decode 512,4k."
        )
    if not options.batch:
        raise BenchError("--batch is empty. Set a number of rows, or leave it out for one row.")
    return order(prefill, "--prefill"), order(decode, "--decode"), order(options.batch, "--batch")
