"""``logits``: a teacher's logits are written once, for students to learn from without the teacher in memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from composer.data.loading import check_references
from composer.data.packing import Packing
from composer.errors import ComposerError, TrainingError, translate_errors
from composer.options.arguments import TokenCount, read_tokens
from composer.options.classes import argument, convert_options, function_of, option, options_class
from composer.options.command import Screen, command
from composer.options.shared import (
    OUT,
    PROGRESS,
    SOURCE,
    DataOptions,
    DeviceOption,
    ForceOption,
    PartsOption,
    SeedOption,
    reads,
    to_path,
    to_text,
)
from composer.reporting.progress import BarUpdate, progress_callback, silent_transformers
from composer.reporting.terminal import at_once, print_result
from composer.spec.recipe import Recipe
from composer.system.devices import check_device, room_for
from composer.system.notices import inform

if TYPE_CHECKING:
    from composer.training.logits_writing import WrittenLogits

TOP_K, BATCH = 64, 4


@reads(str)
def to_row(value: TokenCount | None) -> int | None:
    """Return the tokens of a row. Raises ValueError."""
    return None if value is None else read_tokens(value, minimum=2)


@options_class
class OfTeacher(PartsOption):
    teacher: str = argument(SOURCE, converter=to_text, metavar="SOURCE")


@options_class
class LogitsCommandOptions(ForceOption, DeviceOption, SeedOption, DataOptions, OfTeacher):
    """Write a teacher's logits, for students to learn from.

    `compose distill STUDENT --stage finetune --teacher-logits OUT` then needs no teacher in memory. Data, rows, share and seed
    have to be those of the student's run. A call that was stopped continues in the same folder.
    """

    error: ClassVar[type[ComposerError]] = TrainingError
    example: ClassVar[str] = 'composer.logits("teacher", "texts.jsonl", "teacher-logits", top_k=64)'
    out: Path = option("Folder for the logits.", converter=to_path, kw_only=False, **OUT)
    top_k: int = option("Logits of each token: the K largest.", default=TOP_K, minimum=1, metavar="K")
    temperature: float = option("The recipe's finetune.temperature.", default=1.0, minimum=0.01)
    sequence: int | None = option(
        "Tokens of a row, as the recipe's sequence. 1k is 1,024.", default=None, converter=to_row, metavar="N"
    )
    rows: Packing = option("How texts are packed, as the recipe's rows.", default="packed")
    batch: int = option("Rows that are computed together, which decides speed and memory alone.", default=BATCH, minimum=1)
    progress: bool | Callable[[int, int], None] = option(PROGRESS, default=False, is_checked=False, is_hidden=True)


@translate_errors
def run_logits(options: LogitsCommandOptions) -> WrittenLogits:
    check_references((*options.data, *options.held_out))
    check_device(options.device)
    fewer = f"Compute fewer rows at once (--batch, now {options.batch:,}), or shorter ones (--sequence)."
    with room_for(f"on {options.device}", fewer, TrainingError), silent_transformers("error"):
        from composer.training.logits_writing import LogitsOptions, write_logits
        from composer.training.options import TrainingOptions
        from composer.training.teacher import open_language_model

        training = convert_options(options, TrainingOptions, teacher=None, tell=inform)
        with progress_callback(options.progress, bar_of, "name", "bar", "count", "left") as watch:
            recipe = Recipe(sequence=options.sequence, rows=options.rows)
            writing = convert_options(options, LogitsOptions, recipe=recipe, watch=watch)
            return write_logits(open_language_model(options.teacher), options.out.expanduser(), training, writing)


logits = function_of(LogitsCommandOptions, run_logits)


def bar_of(done: int, total: int) -> BarUpdate:
    """Return the number of finished rows, as a bar shows it."""
    return BarUpdate("rows", done, total)


@command(LogitsCommandOptions, "quiet", "as_json")
def logits_command(options: LogitsCommandOptions, screen: Screen) -> None:
    at_once(f"Reading {options.teacher}", quiet=screen.hides_progress)
    print_result(run_logits(replace(options, progress=not screen.hides_progress)), as_json=screen.as_json)
