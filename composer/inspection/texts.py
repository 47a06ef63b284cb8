"""The text of an inspection: its tokens, the answers, and the earlier columns of the answers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from composer.errors import InspectionError
from composer.inspection.options import InspectOptions
from composer.system.notices import warn_user
from composer.tasks.base import rng_of
from composer.tasks.writer import Writer, hardly_written, unknown_token


@dataclass(frozen=True)
class LookedText:
    """ids: the tokens. tokens: as people read them. answers: the columns of tokens that a model has to answer; none in a text
    without a question. found_at: for each answer, the earlier columns with the same token among the same neighbours."""

    label: str
    ids: tuple[int, ...]
    tokens: tuple[str, ...]
    answers: tuple[int, ...]
    found_at: tuple[tuple[int, ...], ...]

    def queries(self, count: int) -> tuple[int, ...]:
        """Columns to compute weights of: those before an answer, and others, evenly spread up to the last, ``count`` in all."""
        columns = {answer - 1 for answer in self.answers}
        length, remaining = len(self.ids), max(0, count - len(columns))
        if remaining >= length:
            return tuple(range(length))
        even = {round((index + 1) * (length - 1) / remaining) for index in range(remaining)} if remaining else set()
        return tuple(sorted(columns | even))


def prepare_text(tokenizer: Any, options: InspectOptions) -> LookedText:
    """Raise InspectionError, EvaluationError and TaskError."""
    writer = Writer(tokenizer)
    if options.text is not None:
        ids = writer.encode(options.text)[: options.length]
        if len(ids) < 2:
            raise InspectionError(f"The text has {len(ids)} tokens; expected at least 2. Use a longer text.")
        _check_written("the text", ids, tokenizer)
        return LookedText("text", tuple(ids), _show(writer, ids), (), ())
    label, task = options.task()
    sample = task.sample(rng_of(options.seed, "evaluation", 0), writer, options.length, "evaluation")
    _check_written(f"the text of {label}", sample.ids, tokenizer)
    answers, found_at = [], []
    for run in _runs(sample.answer):
        answers += run
        found_at += _earlier(sample.ids, run)
    return LookedText(label, sample.ids, _show(writer, sample.ids), tuple(answers), tuple(found_at))


def _check_written(subject: str, ids: Sequence[int], tokenizer: Any) -> None:
    if warning := hardly_written(subject, ids, unknown_token(tokenizer)):
        warn_user(warning)


def _show(writer: Writer, ids: Sequence[int]) -> tuple[str, ...]:
    return tuple(writer.tokenizer.decode([token]) for token in ids)


def _runs(marks: Sequence[bool]) -> Iterator[list[int]]:
    """Yield the columns of consecutive answers."""
    run: list[int] = []
    for column, mark in enumerate((*marks, False)):
        if mark:
            run.append(column)
        elif run:
            yield run
            run = []


def _earlier(ids: Sequence[int], run: Sequence[int]) -> list[tuple[int, ...]]:
    """Return, for each token of an answer, its earlier columns, as part of the longest earlier stretch of the answer. The first
    token of an answer may differ from the one in the text."""
    wanted = [ids[column] for column in run]
    for skipped in range(len(wanted)):
        part = wanted[skipped:]
        starts = [start for start in range(run[0] - len(part) + 1) if list(ids[start : start + len(part)]) == part]
        if starts:
            return [tuple(start + place - skipped for start in starts) if place >= skipped else () for place in range(len(wanted))]
    return [() for _ in wanted]
