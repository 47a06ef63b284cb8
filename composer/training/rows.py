"""The rows of a run: those to train on, those to evaluate on, and the warnings about them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from composer.data.loading import load_rows
from composer.data.packing import PackedRows
from composer.errors import TrainingError
from composer.spec.recipe import Recipe, Stage
from composer.tasks.unknown import hardly_written, unknown_token
from composer.training.measure import rows_to_evaluate, some
from composer.training.processes import is_first
from composer.trust import load_tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from composer.training.run import TrainingOptions
    from composer.training.student import Student

LONGEST_ROW = 1024
"""The length of a row in tokens, unless the recipe or the source sets less."""


def rows_of(student: Student, options: TrainingOptions) -> tuple[PackedRows, PackedRows | None]:
    """The rows to train on, and those to evaluate on. Raises TrainingError and DataError."""
    trunk = student.record.trunk
    tokenizer = tokenizer_of(student.source.folder)
    return both_sides(tokenizer, trunk["vocabulary_size"], trunk["max_positions"], student.recipe, options)


def both_sides(
    tokenizer: PreTrainedTokenizerBase, vocabulary: int, longest: int, recipe: Recipe, options: TrainingOptions
) -> tuple[PackedRows, PackedRows | None]:
    """The rows of ``rows_of``, for any model with ``vocabulary`` embeddings that was made for at most ``longest`` tokens."""
    share = 0.0 if options.held_out else options.share

    def rows(references: Sequence[str], split: Literal["train", "evaluation"]) -> PackedRows:
        return load_rows(
            references,
            tokenizer,
            recipe.sequence or min(LONGEST_ROW, longest),
            split=split,
            vocabulary=vocabulary,
            how=recipe.rows,
            longest=longest,
            share=share,
            seed=options.seed,
        )

    held = rows(options.held_out or options.data, "evaluation") if options.held_out or share else None
    return rows(options.data, "train"), held


def tokenizer_of(folder: Path) -> PreTrainedTokenizerBase:
    """Raises TrainingError where there is none."""
    problem = f"{folder} has no tokenizer that transformers can read; copy the source's there, or name one at the build"
    return load_tokenizer(folder, TrainingError, problem)


def unwritten(folder: Path, rows: PackedRows) -> Iterator[str]:
    """The warning for rows that the tokenizer in a folder cannot write."""
    if said := hardly_written("the data", rows.ids[rows.valid], unknown_token(tokenizer_of(folder))):
        yield said


def bounded(held_out: PackedRows, stages: Mapping[str, Stage], rows: PackedRows, options: TrainingOptions) -> PackedRows:
    """The held-out rows to evaluate on. Where they are not all, a message says how many they are."""
    asked = options.held_out_rows
    few = some(held_out, rows_to_evaluate(stages.values(), rows) if asked is None else asked)
    if asked is None and len(few) < len(held_out) and is_first():
        options.tell(f"Evaluating on {len(few):,} of {len(held_out):,} held-out rows, to take about a fifth of the time.")
    return few


def warn_or_raise(said: Iterable[str], options: TrainingOptions) -> None:
    """Print the warnings about a run. Raises TrainingError with the first where ``strict`` makes them errors."""
    for what in said:
        if options.strict:
            raise TrainingError(f"{what} --strict makes this an error.")
        if is_first():
            (options.warn or options.tell)(what)
