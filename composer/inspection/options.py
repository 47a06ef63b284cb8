"""The options of an inspection."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from composer.errors import ComposerError, InspectionError
from composer.evaluation.arguments import read_tasks
from composer.evaluation.options import SHORTEST, EvaluationOptions
from composer.options.arguments import Numbers, read_numbers
from composer.options.classes import option, options_class
from composer.options.shared import (
    OUT,
    BackendOption,
    DeviceOption,
    ForceOption,
    SeedOption,
    reads,
    to_optional_path,
    to_optional_text,
)
from composer.tasks.base import Task

QUERIES, LENGTH, TASK = 64, 256, "passkey"
ONE_TEXT = "one text at a time, since its pictures have a column a token"


def to_length(value: Numbers) -> int:
    """Return one number of tokens. Raises ValueError."""
    lengths = read_numbers(value, minimum=SHORTEST)
    if len(lengths) != 1:
        values = ", ".join(map(str, lengths)) or "nothing"
        raise ValueError(f"expected one number of tokens, because a model is inspected on {ONE_TEXT}, got {values}")
    return lengths[0]


@reads(str)
def to_layers(value: Numbers | None) -> tuple[int, ...] | None:
    """Layers, of which -1 is the last; None: all. Raises ValueError."""
    return None if value is None else read_numbers(value, minimum=None, thousands=False)


@reads(str)
def to_tasks(value: str | Task | Sequence[str | Task] | None) -> tuple[str | Task, ...]:
    if value is None:
        return ()
    return tuple(value) if isinstance(value, Sequence) and not isinstance(value, str) else (value,)


@options_class
class InspectOptions(ForceOption, BackendOption, DeviceOption, SeedOption):
    """How a model is inspected."""

    error: ClassVar[type[ComposerError]] = InspectionError
    text: str | None = option(
        "Text to inspect the model on. On the command line, a file with the text.", default=None, metavar="FILE"
    )
    tasks: tuple[str | Task, ...] = option(
        f"Task that writes the text, followed by its options. Left out, {TASK}.", default=None, converter=to_tasks, metavar="TASK"
    )
    length: int = option(
        "Largest number of tokens of the text. 1k is 1,024.", default=LENGTH, converter=to_length, metavar="N", kind=str
    )
    layers: tuple[int, ...] | None = option(
        "Layers to inspect, from 0, or from -1 backwards. Left out, all.", default=None, converter=to_layers, metavar="N,…"
    )
    queries: int = option(
        "Number of tokens, evenly spread, whose attention is computed. Those before an answer are among them.",
        default=QUERIES,
        minimum=2,
    )
    teacher: str | None = option(
        "Model to compare with. Left out, the source of the student.",
        default=None,
        converter=to_optional_text,
        metavar="SOURCE",
    )
    alone: bool = option("Compare with nothing.", default=False)
    out: Path | None = option(
        "Folder for a page, pictures and numbers. Left out, nothing is written.", default=None, converter=to_optional_path, **OUT
    )

    def task(self) -> tuple[str, Task]:
        """Return the task that writes the text, and its label. Raises InspectionError and EvaluationError."""
        named = read_tasks(self.tasks or [TASK], EvaluationOptions(samples=1, seed=self.seed))
        if len(named) != 1:
            labels = ", ".join(task.label for task in named) or "nothing"
            raise InspectionError(f"--tasks: {labels}; a model is looked at on {ONE_TEXT}: name one task.")
        if not isinstance(task := named[0].task, Task):
            raise InspectionError(f"{named[0].label}: name a task that writes its own text, such as passkey or recall.")
        return named[0].label, task

    def check(self) -> None:
        """Raise InspectionError if options contradict each other."""
        if self.tasks and self.text is not None:
            raise InspectionError(
                "--tasks and --text exclude each other, because a task writes its own text: leave one of them out."
            )
        if self.teacher is not None and self.alone:
            raise InspectionError("--teacher and --alone exclude each other: leave one of them out.")
        if self.text is None:
            self.task()
