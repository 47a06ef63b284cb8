"""The subjects of an evaluation, which are models with their tokenizers, and tasks.

Before a model is loaded, it is checked at which lengths a task can be written in the model's tokens and positions.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from composer.errors import EvaluationError, TaskError
from composer.evaluation.arguments import NamedTask
from composer.evaluation.cells import CellKey
from composer.evaluation.report import EvaluatedModelFacts, TaskIdentity
from composer.evaluation.scoring import MORE, check_tokens, draw_samples
from composer.runs.identity import list_named_files, tokenizer_identity
from composer.system.files import sha256
from composer.system.notices import warn_user
from composer.system.trust import load_tokenizer
from composer.tasks.base import Sample
from composer.tasks.writer import Writer, hardly_written, unknown_token
from composer.weights.config import check_positions
from composer.weights.opened import Opened, open_models
from converters.source import TOKENIZER, Source, small_files
from converters.trunk import Dtype, Sizes

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True)
class Subject(Opened):
    """A model to evaluate, and its tokenizer."""

    tokenizer: PreTrainedTokenizerBase

    def facts(self, dtype: Dtype | None) -> EvaluatedModelFacts:
        """Return the model's identity, its tokenizer's hash included. Reads all weights whose hash is not recorded."""
        return EvaluatedModelFacts(**dict(super().facts(dtype)), tokenizer_sha256=_tokenizer_hash(self.source.folder))


def open_subjects(models: Sequence[str | Path] | Mapping[str, str | Path], dtype: Dtype | None = None) -> tuple[Subject, ...]:
    """As ``open_models`` of ``composer.weights.opened``, with their tokenizers. Raises SourceError and EvaluationError."""
    opened = open_models(models, EvaluationError, dtype)
    return tuple(
        Subject(model.label, model.reference, model.source, model.refusal, _tokenizer(model.reference, model.source))
        for model in opened
    )


def _tokenizer(reference: str, source: Source) -> PreTrainedTokenizerBase:
    if not small_files(source.folder, TOKENIZER):
        raise EvaluationError(f"{reference} has no tokenizer, so it can read no task: copy one into its folder.")
    return load_tokenizer(source.folder, EvaluationError, f"{reference} has no tokenizer that transformers can read")


def _tokenizer_hash(folder: Path) -> str:
    """Return one hash of the files of a tokenizer, their names included."""
    lines = "".join(f"{name} {digest}\n" for name, digest in tokenizer_identity(folder).items())
    return hashlib.sha256(lines.encode()).hexdigest()


def task_facts(named: NamedTask) -> TaskIdentity:
    """Return the options, files and texts that decide the samples of a task."""
    task = named.task
    return TaskIdentity(
        label=named.label,
        scored=task.scored,
        source=task.source,
        options=task.model_dump(mode="json"),
        files={name: sha256(path) for name, path in list_named_files(task).items()},
        provenance=task.provenance,
    )


OnMade = Callable[[CellKey, int, int], None]
"""Called for each sample that is made for the check: with its cell, the number made so far, and the number to make."""
MadeSamples = dict[CellKey, dict[int, Sample]]
"""The samples of each cell, by index."""
MOST_KEPT = 2**21
"""Tokens of the samples that are kept from this check until they are scored: about 100 MiB. More samples are made again."""
OnSample = Callable[[int, int, int, Sample], None]


def impossible_cells(
    subjects: Sequence[Subject], tasks: Sequence[NamedTask], lengths: Sequence[int], on_made: OnMade | None = None
) -> tuple[dict[CellKey, str], MadeSamples]:
    """Return the cells that cannot be scored, each with its reason, and the samples that were made of the others. Logs a warning
    for texts that a tokenizer cannot write. Raises EvaluationError and TaskError for a task that can be done at no length."""
    reasons_of: dict[CellKey, str] = {}
    samples_of: MadeSamples = {}
    room = MOST_KEPT
    doubts: dict[str, list[str]] = {}
    for subject in subjects:
        trunk = subject.source.trunk
        for named in tasks:
            tokens: list[int] = []

            def on_sample(length: int, done: int, count: int, sample: Sample, named=named, subject=subject, tokens=tokens) -> None:
                nonlocal room
                key = CellKey(subject.label, named.label, length)
                tokens += sample.ids
                if len(sample.ids) <= room:
                    room -= len(sample.ids)
                    samples_of.setdefault(key, {})[done - 1] = sample
                if on_made is not None:
                    on_made(key, done, count)

            reasons = _impossible(subject.tokenizer, trunk.vocabulary_size, named, lengths, trunk, subject.reference, on_sample)
            reasons_of |= {CellKey(subject.label, named.label, length): reason for length, reason in reasons}
            if doubt := hardly_written(f"the texts of {named.label}", tokens, unknown_token(subject.tokenizer)):
                doubts.setdefault(doubt, []).append(subject.label)
    for doubt, labels in doubts.items():
        warn_user(f"{', '.join(labels)}: {doubt}")
    return reasons_of, {key: samples for key, samples in samples_of.items() if key not in reasons_of}


def check_texts(tokenizer: Any, vocabulary: int, tasks: Sequence[NamedTask], lengths: Sequence[int]) -> None:
    """Raises TaskError and EvaluationError if a task cannot be written in these tokens at one of the lengths."""
    for named in tasks:
        for _, reason in _impossible(tokenizer, vocabulary, named, lengths, None, ""):
            raise TaskError(f"{reason}.")


def _impossible(
    tokenizer: Any,
    vocabulary: int,
    named: NamedTask,
    lengths: Sequence[int],
    trunk: Sizes | None,
    reference: str,
    on_sample: OnSample = lambda *_: None,
) -> Iterator[tuple[int, str]]:
    """Yield the lengths at which a task cannot be done, each with its reason. At the shortest possible length all samples are made,
    at longer ones only the first: all others fit there, too."""
    writer, problems, seen = Writer(tokenizer), {}, False
    for length in lengths:
        try:
            if trunk is not None:
                _check_room(named, length, trunk, reference)
            samples = draw_samples(named.task, writer, length)
            texts, count = [], 1 if seen else samples.count
            for index in range(count):
                texts.append(samples.draw(index))
                on_sample(length, index + 1, count, texts[-1])
        except (TaskError, _NoRoom) as error:
            problems[length] = error
            continue
        seen = True
        check_tokens(texts, vocabulary, named.label, tokenizer)
    if lengths and len(problems) == len(lengths):
        raise problems[lengths[-1]]
    yield from ((length, str(error).removesuffix(".")) for length, error in problems.items())


class _NoRoom(EvaluationError):
    """A length exceeds a model's table of learned positions."""


def _check_room(named: NamedTask, length: int, trunk: Sizes, reference: str) -> None:
    more = MORE if named.task.scored == "written" else 0
    purpose = f", with {MORE} more for what is written" if more else ""
    check_positions(trunk, reference, length, "the largest possible length is", _NoRoom, more=more, purpose=purpose)
