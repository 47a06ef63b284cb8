"""The inputs of an ablation beside its specs, by the contents of their files: models, data and tasks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from composer.evaluation.arguments import NamedTask, read_lengths, read_tasks
from composer.evaluation.options import EvaluationOptions
from composer.evaluation.subjects import task_facts
from composer.options import converted
from composer.runs.identity import data_identity, model_identity, tokenizer_identity
from composer.versions import versions_of
from composer.weights.sources import open_model, tokenizer_folder

if TYPE_CHECKING:
    from composer.ablation.options import Request

PACKAGES = ("attention-composer", "torch", "transformers", "tokenizers", "peft", "safetensors")


def common_to_all(request: Request) -> dict[str, Any]:
    """The inputs that all variants share, as JSON. Raises ComposerError where one of them cannot be read.

    Files count by the hashes of their contents, weights as ``fingerprint`` has them, data of the Hub by their reference alone.
    """
    source = None if request.source is None else model_identity(open_model(request.source))
    return {
        "versions": versions_of(PACKAGES),
        "source": source,
        "teacher": source if request.teacher is None else model_identity(open_model(request.teacher)),
        "tokenizer": None if request.tokenizer is None else tokenizer_identity(tokenizer_folder(request.tokenizer)),
        "data": [data_identity(reference) for reference in request.data],
        "held_out": [data_identity(reference) for reference in request.held_out],
        "tasks": [task_facts(task).model_dump(mode="json") for task in tasks_of(request)],
    }


def tasks_of(request: Request) -> tuple[NamedTask, ...]:
    """The tasks with all of their options. Raises EvaluationError, also where lengths are missing."""
    if not request.tasks:
        return ()
    read_lengths(request.lengths)
    return read_tasks(request.tasks, converted(request, EvaluationOptions))
