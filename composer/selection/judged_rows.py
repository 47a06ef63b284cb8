"""Rows of a needle and of text, and how far the predictions of a model on them are from the source's."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from composer.data.packing import IGNORED, Batch, PackedRows
from composer.errors import SelectionError
from composer.evaluation.arguments import NamedTask, read_tasks
from composer.evaluation.options import EvaluationOptions
from composer.model.modeling import ComposedForCausalLM
from composer.selection.report import TokensScored
from composer.spec.recipe import Recipe
from composer.spec.resolve import Resolved
from composer.tasks.base import Sample, Split, Task, rng_of
from composer.tasks.writer import Writer
from composer.training.finetune import divergence
from composer.training.rows import both_sides, some, tokenizer_of
from composer.training.run import TrainingOptions
from composer.training.teacher import Teacher

LEARNED_TOKENS = 64
"""Tokens of the text in a row that are compared, beside those of the answer."""


class Compared(NamedTuple):
    """Figures of the tokens of one batch, in nats: KL(source ‖ model), and -log p of the true tokens. is_found: every token of the
    answer is the model's first choice."""

    text: Tensor
    answer: Tensor
    text_loss: Tensor
    answer_loss: Tensor
    is_found: bool


class Divergences(NamedTuple):
    """KL(source ‖ model) in nats per token of the text and of the answers, the share of the answers that are found, and -log p of
    the true tokens in nats per token."""

    divergence: float
    answer_divergence: float
    answers_found: float
    loss: float
    answer_loss: float

    def over(self, score: TokensScored, *, of_loss: bool = False) -> float:
        """Return the divergence, or the loss, over the tokens of a score."""
        text, answers = (self.loss, self.answer_loss) if of_loss else (self.divergence, self.answer_divergence)
        return {"text": text, "answers": answers, "both": text + answers}[score]


class JudgedRows:
    """Held-out rows, and the source's logits on them."""

    def __init__(
        self, rows: PackedRows, source: Callable[[Batch], Tensor], device: torch.device, advance: Callable[[], None]
    ) -> None:
        """source: returns the source's logits N V of the tokens that are compared in a row. advance: called by ``measure`` after
        each row."""
        self.rows, self._device, self.advance = rows, device, advance
        with torch.no_grad():
            self._wanted = [source(part.to(device)).float().cpu() for part in rows.in_order(1)]
        self.source = _mean([compare(wanted, wanted, part) for part, wanted in zip(rows.in_order(1), self._wanted, strict=True)])

    @torch.no_grad()
    def measure(self, model: Callable[[Batch], Tensor]) -> Divergences:
        """Compare a model, which returns its logits as the source does."""
        compared: list[Compared] = []
        for part, wanted in zip(self.rows.in_order(1), self._wanted, strict=True):
            batch = part.to(self._device)
            compared.append(compare(model(batch), wanted.to(self._device), batch))
            self.advance()
        return _mean(compared)


def _mean(compared: Sequence[Compared]) -> Divergences:
    *parts, is_found = zip(*compared, strict=True)
    text, answer, loss, answer_loss = (float(torch.cat(part).mean()) for part in parts)
    return Divergences(
        max(0.0, text), max(0.0, answer), sum(is_found) / len(is_found), loss, answer_loss
    )  # rounding may be below 0


def logits_at(model: ComposedForCausalLM, batch: Batch) -> Tensor:
    """Return the logits of the tokens that are compared, N V. Those of all others are not computed."""
    hidden = model.base(**batch.inputs(mask=True), use_cache=False).last_hidden_state
    return model.logits_of(hidden[:, :-1][batch.predicted][None])[0]


def answers_in(batch: Batch) -> Tensor:
    """The tokens of each row's first document, which has the needle, B T bool."""
    return (batch.position == 0).cumsum(1) == 1


def compare(logits: Tensor, wanted: Tensor, batch: Batch) -> Compared:
    """Compare a model's logits with the source's, both N V, of the tokens of ``logits_at``."""
    apart, is_answer = divergence(logits.float(), wanted.float(), 1.0), answers_in(batch)[:, 1:][batch.predicted]
    labels = batch.labels[:, 1:][batch.predicted]
    losses = functional.cross_entropy(logits.float(), labels, reduction="none")
    is_found = bool((logits.argmax(-1) == labels)[is_answer].all())
    return Compared(apart[~is_answer], apart[is_answer], losses[~is_answer], losses[is_answer], is_found)


def read_needles(tasks: Sequence[str]) -> tuple[NamedTask, ...]:
    """Return tasks by their names, each followed by its options. Raises SelectionError for one without answers, and
    EvaluationError."""
    named = read_tasks(tasks, EvaluationOptions())
    for task in named:
        if not isinstance(task.task, Task) or task.task.scored == "loss":
            raise SelectionError(f"--tasks {task.label}: it has no answers to find. Choose tasks such as passkey or niah-single-2.")
    return named


def rows_with_needles(
    recipe: Recipe | None,
    teacher: Teacher,
    tasks: Sequence[NamedTask],
    training: TrainingOptions,
    *,
    steps: int,
    limit: int,
    heads: Resolved,
) -> tuple[PackedRows, PackedRows]:
    """Return ``steps`` rows to learn from, and at most ``limit`` rows to score on. heads: those that are mixed in.

    Raises SelectionError, TaskError, TrainingError and DataError.
    """
    trunk, tokenizer = teacher.source.trunk, tokenizer_of(teacher.source.folder)
    recipe = Recipe(sequence=None if recipe is None else recipe.sequence)
    texts, held_out = both_sides(tokenizer, trunk.vocabulary_size, trunk.max_positions, recipe, training)
    assert held_out is not None, "the options hold a share out"
    writer, needle_tasks = Writer(tokenizer), [task for named in tasks if isinstance(task := named.task, Task)]
    held_out = some(held_out, limit)
    learned = write_rows(texts, needle_tasks, writer, "train", training.seed, steps)
    judged = write_rows(held_out, needle_tasks, writer, "evaluation", training.seed, len(held_out))
    for rows in (held_out, *([learned] if steps else [])):
        check_lengths(rows, heads)
    return learned, judged


def check_lengths(rows: PackedRows, heads: Resolved) -> None:
    """Raise SelectionError if no text in a row is longer than what heads keep exactly: gates would then have no effect."""
    exact_count, longest = exact_pairs(heads), int(rows.position[rows.valid].max()) + 1
    if longest <= exact_count:
        raise SelectionError(
            f"The longest text in a row has {longest:,} tokens, and the heads keep {exact_count:,} pairs exactly, so they lose "
            "nothing there. Use longer texts in --data or --held-out, or longer rows: "
            f"--set recipe.sequence={4 * exact_count}"
        )


def exact_pairs(resolved: Resolved) -> int:
    """Return the most pairs that a head of a spec keeps exactly, beside the source's own attention."""
    heads = resolved.heads.values()
    return max(sum(memory.capacity for memory in head.memory if memory.exact and memory.bounded) for head in heads)


def write_rows(rows: PackedRows, tasks: Sequence[Task], writer: Writer, split: Split, seed: int, count: int) -> PackedRows:
    """Return ``count`` rows, each of a sample of a task and the beginning of a row of texts. A label marks a token to compare.

    A sample has between a half and seven eighths of the row. Raises TaskError if a task has no sample of such a length.
    """
    length, new_rows = rows.sequence, rows.take(np.arange(count) % len(rows))
    for row in range(count):
        rng = rng_of(seed, split, row)
        sample = draw_needle(tasks[row % len(tasks)], rng, writer, length, split)
        _put(new_rows, row, sample, np.random.default_rng(rng.getrandbits(64)))
    return new_rows


def draw_needle(task: Task, rng: random.Random, writer: Writer, length: int, split: Split) -> Sample:
    """Return a sample for a row of ``length`` tokens."""
    return task.sample(rng, writer, rng.randint(length // 2, length * 7 // 8), split)


def _put(rows: PackedRows, row: int, sample: Sample, numbers: np.random.Generator) -> None:
    """Put a sample before the text of a row, in place, and mark the tokens to compare."""
    ids, labels, position, valid = (array[row] for array in (rows.ids, rows.labels, rows.position, rows.valid))
    length = len(sample.ids)
    remaining = len(ids) - length
    for array in (ids, labels, position, valid):
        array[length:] = array[:remaining].copy()
    ids[:length], position[:length], valid[:length] = sample.ids, np.arange(length), True
    labels[:length] = np.where(sample.answer, sample.ids, IGNORED)
    learned = length + np.flatnonzero(labels[length:] != IGNORED)
    left_out = numbers.permutation(learned)[LEARNED_TOKENS:]
    labels[left_out] = IGNORED
    labels[0] = IGNORED
