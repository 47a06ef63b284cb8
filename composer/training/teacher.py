"""The teacher of a student: the model that it was built from, with its own attention."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from composer.building.build import ModelOptions, run_build_in_memory
from composer.errors import TrainingError
from composer.graph.lowering import AUTO
from composer.model.modeling import ComposedForCausalLM
from composer.system.files import sha256
from composer.system.trust import load_tokenizer
from composer.weights.load import load_model
from composer.weights.record import Record, StoredSource, StoredUnpacked
from composer.weights.sources import describe_model, open_model
from converters.bounded import list_first, problem_with, shorten, within
from converters.gguf import is_gguf
from converters.source import Source
from converters.trunk import Dtype

SIZES = {
    "vocabulary_size": "tokens in the vocabulary",
    "hidden_size": "channels",
    "layers": "layers",
    "heads": "query heads",
    "key_heads": "key heads",
    "head_dim": "numbers in a key",
    "value_dim": "numbers in a value",
}


@dataclass(frozen=True)
class Teacher:
    """A model to learn from, of which only the headers have been read. reference: as the user names it."""

    reference: str
    source: Source

    def load(self, device: str, backend: str = AUTO) -> ComposedForCausalLM:
        """Return the teacher in float32, frozen. A source has softmax attention in all of its heads; a built model is loaded
        unchanged. backend: the student's; a part of the teacher without a form on it falls back to another backend.
        """
        folder = self.source.folder
        if self.source.is_composed:
            model = load_model(folder, "float32", device)
        else:
            model = run_build_in_memory(ModelOptions("softmax", folder, dtype="float32")).to(device)  # pyright: ignore[reportArgumentType]
        assert isinstance(model, ComposedForCausalLM), "open_language_model lets no classifier through"
        model.run_on(backend)
        return model.requires_grad_(False).eval()


def open_teacher(record: Record, name: str | os.PathLike[str] | None, *, student: Path | None = None) -> Teacher:
    """Return the model that the user names, or the student's source. Raises TrainingError if it does not fit, and SourceError.

    student: the student's folder, where only the teacher's logits are learned from. Such a teacher may have other sizes, and needs
    the student's vocabulary. None: hidden states or heads are compared, so all sizes have to be equal.
    """
    reference = os.fspath(name) if name is not None else _reference(record)
    # The revision belongs to the repository that the student was built from.
    revision = record.source.commit if record.source is not None and reference == record.source.repo_id else None
    revision = None if Path(reference).expanduser().is_dir() else revision
    teacher = open_language_model(reference, revision, record.plan.dtype)
    if student is None:
        check_fits(teacher, record.trunk)
    elif name is not None:
        check_vocabulary(teacher, student, record.trunk["vocabulary_size"])
    return teacher


def check_fits(teacher: Teacher, trunk: Mapping[str, Any]) -> None:
    """Raise TrainingError if the teacher's sizes are not those of the student's trunk."""
    for name, words in SIZES.items():
        theirs, ours = (trunk_sizes.get(name) or trunk_sizes["head_dim"] for trunk_sizes in (vars(teacher.source.trunk), trunk))
        if theirs != ours:
            raise TrainingError(
                f"The teacher {teacher.reference} does not fit the student: it has {theirs:,} {words}, the student {ours:,}. "
                "Name the model that the student was built from, or one of the same sizes. Only fine-tuning learns from a teacher "
                "of other sizes, by its logits: --stage finetune --set recipe.finetune.distill=1"
            )


def check_vocabulary(teacher: Teacher, student: Path, embeddings: int) -> None:
    """Raise TrainingError if two models' tokens do not mean the same, so that their logits cannot be compared.

    Embeddings may be padded by rows that no token has, and then differ in number. student: its folder. embeddings: their number.
    """
    theirs, ours = tokens_of(teacher.source.folder), tokens_of(student)
    differs = next((token for token in sorted(theirs.keys() | ours.keys()) if theirs.get(token) != ours.get(token)), None)
    if differs is not None:
        was, now = (f'"{shorten(tokens[differs])}"' if differs in tokens else "missing" for tokens in (theirs, ours))
        raise TrainingError(
            f"The teacher {teacher.reference} has another vocabulary: token {differs:,} is {was} in its tokenizer and {now} in the "
            "student's. Its logits mean other tokens. Name a teacher with the student's tokenizer."
        )
    theirs_padded, needed = teacher.source.trunk.vocabulary_size, max(ours, default=-1) + 1
    if theirs_padded != embeddings and min(theirs_padded, embeddings) < needed:
        raise TrainingError(
            f"The teacher {teacher.reference} has {theirs_padded:,} embeddings, the student {embeddings:,}, and their tokenizer "
            f"has {needed:,} tokens. Only embeddings that no token has may differ. Name a teacher with as many."
        )


def tokens_of(folder: Path) -> dict[int, str]:
    """Return the tokens of a folder's tokenizer by their numbers. Raises TrainingError if there is none."""
    problem = f"{folder} has no tokenizer that transformers can read, so its logits cannot be matched to tokens"
    return {number: token for token, number in load_tokenizer(folder, TrainingError, problem).get_vocab().items()}


def open_language_model(reference: str, revision: str | None = None, dtype: Dtype | None = None) -> Teacher:
    """Return a folder, a model of the Hub or a GGUF file. Raises SourceError, and TrainingError for a classifier.

    dtype: of weights that are quantised, and unpacked here.
    """
    source = open_model(reference, revision, dtype)
    if source.trunk.labels is not None:
        raise TrainingError(f"{reference} is a classifier; a teacher is a language model.")
    return Teacher(reference, source)


def _reference(record: Record) -> str:
    """Return the folder that the student was built from, or the quantised weights that it was unpacked from. Raises TrainingError
    if it is missing, or has another model now."""
    source = record.source
    if source is None:
        raise TrainingError(
            "This model was built from nothing, so it has no teacher: name one with --teacher, or use `compose train`."
        )
    if source.unpacked is not None and not Path(source.folder).is_dir():
        return _find_packed_reference(source, source.unpacked)
    if not Path(source.folder).is_dir():
        named = f" It was {source.repo_id}: --teacher {source.repo_id}" if source.repo_id else ""
        raise TrainingError(
            f"The source of the model is not at {source.folder} any more. Name its new place: --teacher SOURCE.{named}"
        )
    if describe_model(source.folder).config_sha256 != source.config_sha256:
        raise TrainingError(
            f"{source.folder}, which the model was built from, has another config.json since then. Name the source's new place "
            f"with --teacher; to learn from the new model, use --teacher {source.folder}"
        )
    return source.folder


def _find_packed_reference(source: StoredSource, unpacked: StoredUnpacked) -> str:
    """Return the path of the quantised weights that a student's source was unpacked from. Raises TrainingError if they
    changed."""
    path = Path(unpacked.path)
    try:
        now = {name: sha256(within(path, name) if path.is_dir() else path.with_name(name)) for name in unpacked.files}
        changed = [name for name, digest in unpacked.files.items() if now[name] != digest]
        problem = f"has changed since ({list_first(changed)})" if changed else None
    except OSError as error:
        problem = f"cannot be read ({problem_with(error)})"
    if problem is None:
        return str(open_model(path, text_only=True).folder) if unpacked.text_only else str(path)
    hub = f"hub:{source.repo_id}"
    if is_gguf(path.name):
        parts = path.parts
        hub = "/".join((hub, *(parts[parts.index(source.commit) + 1 :] if source.commit in parts else parts[-1:])))
    advice = f" It was {hub}: --teacher {hub}" if source.repo_id else ""
    raise TrainingError(
        f"The source of the model was unpacked from {path}, which {problem}, and the unpacked weights are not at {source.folder} "
        f"any more. Name the place of the same weights: --teacher SOURCE.{advice}"
    )
