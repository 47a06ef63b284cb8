"""The subjects of an evaluation, with their identities: models with their tokenizers, and tasks."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from composer.errors import EvaluationError
from composer.evaluation.arguments import NamedTask
from composer.evaluation.report import EvaluatedModelFacts, TaskIdentity
from composer.files import sha256
from composer.runs.identity import list_named_files, tokenizer_identity
from composer.trust import load_tokenizer
from composer.weights.load import Opened, open_models
from converters.source import TOKENIZER, Source, small_files
from converters.trunk import Dtype

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
    """As ``open_models`` of ``composer.weights.load``, with their tokenizers. Raises SourceError and EvaluationError."""
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
