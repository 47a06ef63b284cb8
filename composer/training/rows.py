"""The rows of a run: those to train on, those to evaluate on, and the warnings about them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import ceil, inf
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np

from composer.data.loading import load_rows
from composer.data.packing import PackedRows, Packing
from composer.errors import TrainingError
from composer.graph.composition import ALL, HeadSpec, sources_of_pairs
from composer.reporting.words import plural
from composer.spec.recipe import Recipe, Stage
from composer.spec.resolve import Resolved
from composer.system.trust import load_tokenizer
from composer.tasks.writer import hardly_written, unknown_token
from composer.training.loop import Outcome, evaluation_interval, length_of
from composer.training.processes import is_first

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from composer.training.run import TrainingOptions
    from composer.training.student import Student

LONGEST_ROW = 1024
"""The length of a row in tokens, unless the recipe or the source sets less."""


def rows_of(student: Student, options: TrainingOptions) -> tuple[PackedRows, PackedRows | None]:
    """Return the rows to train on, and those to evaluate on. Raises TrainingError and DataError."""
    trunk = student.record.trunk
    tokenizer = tokenizer_of(student.source.folder)
    return both_sides(tokenizer, trunk["vocabulary_size"], trunk["max_positions"], student.recipe, options)


def both_sides(
    tokenizer: PreTrainedTokenizerBase, vocabulary: int, longest: int, recipe: Recipe, options: TrainingOptions
) -> tuple[PackedRows, PackedRows | None]:
    """Return the rows of ``rows_of``, for any model with ``vocabulary`` embeddings that was made for at most ``longest`` tokens."""
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

    held_out = rows(options.held_out or options.data, "evaluation") if options.held_out or share else None
    return rows(options.data, "train"), held_out


def tokenizer_of(folder: Path) -> PreTrainedTokenizerBase:
    """Raise TrainingError if there is none."""
    problem = f"{folder} has no tokenizer that transformers can read; copy the source's there, or name one at the build"
    return load_tokenizer(folder, TrainingError, problem)


def warn_if_unwritable(folder: Path, rows: PackedRows) -> Iterator[str]:
    """Yield the warning for rows that the tokenizer in a folder cannot write."""
    if warning := hardly_written("the data", rows.ids[rows.valid], unknown_token(tokenizer_of(folder))):
        yield warning


def bound_held_out(held_out: PackedRows, stages: Mapping[str, Stage], rows: PackedRows, options: TrainingOptions) -> PackedRows:
    """Return the held-out rows to evaluate on. If these are not all, print their number."""
    count = options.held_out_rows
    few = some(held_out, rows_to_evaluate(stages.values(), rows) if count is None else count)
    if count is None and len(few) < len(held_out) and is_first():
        options.tell(f"Evaluating on {len(few):,} of {len(held_out):,} held-out rows, which needs about a fifth of the time.")
    return few


def warn_or_raise(warnings: Iterable[str], options: TrainingOptions) -> None:
    """Print the warnings about a run. Raises TrainingError with the first where ``strict`` makes them errors."""
    for warning in warnings:
        if options.strict:
            raise TrainingError(f"{warning} --strict makes this an error.")
        if is_first():
            (options.warn or options.tell)(warning)


FIFTH = 0.25
"""Evaluated rows per trained row at which evaluation is a fifth of a stage's time, if a row needs the same time in both."""
MOST_PASSES = 20
"""The number of passes over the same tokens above which a stage warns."""


def rows_to_evaluate(stages: Iterable[Stage], rows: PackedRows) -> int:
    """Return the number of held-out rows, the same for all stages, whose evaluation needs at most about a fifth of each stage's
    time."""
    counts = []
    for stage in stages:
        steps = length_of(stage, rows)
        counts.append(int(FIFTH * steps * stage.batch / (1 + steps // evaluation_interval(stage, steps))))
    return max(1, min(counts, default=1))


def some(rows: PackedRows, count: int) -> PackedRows:
    """At most so many of the rows, evenly spaced."""
    return rows if len(rows) <= count else rows.take(np.linspace(0, len(rows) - 1, count).round().astype(np.int64))


def too_few(stages: Mapping[str, Stage], rows: PackedRows) -> Iterator[str]:
    """Yield the warning for stages whose data do not fill a step, or are repeated many times: the tokens of the data and of the
    stage."""
    for name, stage in stages.items():
        steps = length_of(stage, rows)
        passes = steps * stage.batch / len(rows)
        if passes <= MOST_PASSES and len(rows) >= stage.batch:
            continue
        max_steps = MOST_PASSES * len(rows) // stage.batch
        needed = max(stage.batch, ceil(steps * stage.batch / MOST_PASSES))
        often = f", and repeats them {passes:,.0f} times: it may memorise them" if passes > MOST_PASSES else ""
        fewer = (
            f", or at most {plural(max_steps, 'step')}: --set recipe.{name}.steps={max_steps}"
            if passes > MOST_PASSES and max_steps
            else ""
        )
        yield (
            f"{name} has data of {plural(rows.tokens, 'token')} in {plural(len(rows), 'row')}{often}. {plural(steps, 'step')} of "
            f"{plural(stage.batch, 'row')} of {rows.sequence:,} tokens need data of {plural(needed, 'row')}, about "
            f"{needed * rows.sequence:,} tokens, or more. Add data{fewer}."
        )


def within_windows(resolved: Resolved, rows: PackedRows, held_out: PackedRows | None, how: Packing) -> Iterator[str]:
    """Yield a warning for the rows to train on, and one for those to evaluate on, if no text in them is longer than what
    heads keep exactly: the memories below are then empty, and a loss on the output of heads is 0."""
    exact_pairs = _pairs_before_others(resolved)
    effects = {
        "training": (rows, "these memories learn nothing"),
        "held-out": (held_out, "the losses do not measure these memories"),
    }
    for name, (texts, effect) in effects.items():
        longest = 0 if texts is None else int(texts.position[texts.valid].max()) + 1
        if 0 < longest <= exact_pairs:
            remedy = "more or longer texts" if how == "joined" else "longer texts, or join them: --set recipe.rows=joined"
            yield (
                f"The longest {name} text in a row has {plural(longest, 'token')}, and the heads keep {exact_pairs:,} pairs "
                f"exactly: no pair is evicted into the memories below, so {effect}. Use {remedy}."
            )


def _pairs_before_others(resolved: Resolved) -> int:
    """Return how many pairs heads keep exactly before another memory receives one: the fewest of all heads; 0 if another memory
    receives the pairs of the text. Heads of exact memories alone are left out: they have nothing below a window."""
    counts = [_pairs_above(head, ALL) for head in resolved.heads.values() if not all(memory.exact for memory in head.memory)]
    least = min(counts, default=0)
    return 0 if least == inf else int(least)


def _pairs_above(head: HeadSpec, source: str) -> float:
    """Return how many pairs from a memory, or of the text, are kept exactly before another memory receives one; inf if none ever
    receives one."""
    counts, sources = [], sources_of_pairs(head)
    for memory in head.memory:
        if sources.get(memory.called) == source:
            counts.append(memory.capacity + _pairs_above(head, memory.called) if memory.exact and memory.bounded else 0)
    return min(counts, default=inf)


def warn_if_nothing_learned(outcomes: Iterable[Outcome], stages: Mapping[str, Stage], rows: PackedRows) -> Iterator[str]:
    """Yield the warning for stages in which no held-out loss got better."""
    for outcome in outcomes:
        worse = all(outcome.after[name] >= before for name, before in outcome.before.items())
        if outcome.before and worse and any(outcome.after.values()):  # losses of 0 have nothing to gain
            kept_message = "fell below its start, so the weights of the start were kept"
            ended = kept_message if stages[outcome.stage].keep == "best" else "fell below its start"
            advice = f"A lower learning rate may help, or more steps: --set recipe.{outcome.stage}.lr=…"
            if len(rows) < stages[outcome.stage].batch:
                advice = f"Its data are {plural(rows.tokens, 'token')}, and do not fill a step: add data."
            yield f"{outcome.stage} made nothing better: no loss on the held-out rows {ended}. {advice}"
