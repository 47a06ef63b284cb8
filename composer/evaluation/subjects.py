"""Models to evaluate: opened, each with its tokenizer."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from composer.errors import EvaluationError
from composer.evaluation.report import EvaluatedModelFacts
from composer.files import sha256
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
        """The model's identity, its tokenizer's hash included. Reads all weights whose hash is not recorded."""
        folder = self.source.folder
        return EvaluatedModelFacts(**dict(super().facts(dtype)), tokenizer_sha256=_hash_of(folder, small_files(folder, TOKENIZER)))


def open_subjects(models: Sequence[str | Path] | Mapping[str, str | Path], dtype: Dtype | None = None) -> tuple[Subject, ...]:
    """As ``open_models`` of ``composer.weights.load``, with their tokenizers. Raises SourceError and EvaluationError."""
    opened = open_models(models, EvaluationError, dtype)
    return tuple(
        Subject(one.label, one.reference, one.source, one.refusal, _tokenizer(one.reference, one.source)) for one in opened
    )


def _tokenizer(reference: str, source: Source) -> PreTrainedTokenizerBase:
    if not small_files(source.folder, TOKENIZER):
        raise EvaluationError(f"{reference} has no tokenizer, so it can read no task: copy one into its folder.")
    return load_tokenizer(source.folder, EvaluationError, f"{reference} has no tokenizer that transformers can read")


def _hash_of(folder: Path, names: Sequence[str]) -> str:
    """One hash of several files, their names included."""
    digest = hashlib.sha256()
    for name in names:
        digest.update(f"{name} {sha256(folder / name)}\n".encode())
    return digest.hexdigest()
