"""The teacher of a student: the model that it was built from, with its own attention."""

from __future__ import annotations

import os
from pathlib import Path

from composer.api import build, load
from composer.errors import TrainingError
from composer.model.configuration import ComposedConfig
from composer.model.modeling import ComposedForCausalLM
from composer.weights.record import Record, StoredSource
from composer.weights.sources import describe_model

SIZES = {
    "vocab_size": "tokens in the vocabulary",
    "hidden_size": "channels",
    "num_hidden_layers": "layers",
    "num_attention_heads": "query heads",
    "num_key_value_heads": "key heads",
    "head_dim": "numbers in a head",
}


def reference_of(record: Record, said: str | os.PathLike[str] | None) -> str:
    """Where the teacher stands: as the user says, or where the student was built from. Raises TrainingError."""
    if said is not None:
        return os.fspath(said)
    source = record.source
    if source is None:
        raise TrainingError(
            "This model was built from nothing, so it has no teacher: name one with --teacher, or use `compose train`."
        )
    if not Path(source.folder).is_dir():
        named = f" It was {source.repo_id}: --teacher {source.repo_id}" if source.repo_id else ""
        raise TrainingError(
            f"The source of the model is not at {source.folder} any more. Say where it is: --teacher SOURCE.{named}"
        )
    return source.folder


def open_teacher(reference: str, source: StoredSource | None, student: ComposedConfig, device: str) -> ComposedForCausalLM:
    """The teacher in float32: a source with softmax attention in all of its heads, or a built model as it is.

    source: what the student was built from; its revision goes with its repository. Raises TrainingError where the sizes differ.
    """
    revision = source.commit if source is not None and reference == source.repo_id else None
    if describe_model(reference, revision).family.model_type == "composed":
        teacher = load(reference, dtype="float32", device=device)
    else:
        teacher = build("softmax", reference, revision=revision, dtype="float32").to(device)  # pyright: ignore[reportArgumentType]
    if not isinstance(teacher, ComposedForCausalLM):
        raise TrainingError(f"{reference} is a classifier; a teacher is a language model.")
    for name, words in SIZES.items():
        theirs, ours = getattr(teacher.config, name), getattr(student, name)
        if theirs != ours:
            raise TrainingError(
                f"The teacher {reference} does not fit the student: it has {theirs:,} {words}, the student {ours:,}. "
                "Name the model that the student was built from, or one of the same sizes."
            )
    return teacher.requires_grad_(False).eval()
