"""The inputs of an ablation beside its specs, by the contents of their files: models, data and tasks."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from composer.data.reading import files_of
from composer.data.references import FileData, TaskData, parse_reference, tasks
from composer.evaluation.arguments import NamedTask, read_lengths, read_tasks
from composer.evaluation.facts import named_files, task_facts
from composer.evaluation.options import EvaluationOptions
from composer.files import sha256
from composer.options import converted
from composer.training.folder import fingerprint
from composer.versions import versions_of
from composer.weights.sources import open_model, tokenizer_folder
from converters.source import TOKENIZER, Source, small_files

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
        "tokenizer": None if request.tokenizer is None else _tokenizer(tokenizer_folder(request.tokenizer)),
        "data": [data_identity(said) for said in request.data],
        "held_out": [data_identity(said) for said in request.held_out],
        "tasks": [task_facts(one).model_dump(mode="json") for one in tasks_of(request)],
    }


def model_identity(source: Source) -> dict[str, Any]:
    """A model by its weights, config and tokenizer."""
    return {**fingerprint(source).model_dump(mode="json"), "tokenizer": _tokenizer(source.folder)}


def data_identity(said: str) -> dict[str, Any]:
    """A reference to data, with the hashes of its files. Raises DataError."""
    reference = parse_reference(said)
    if isinstance(reference, FileData):
        files = {str(path): path for path in files_of(reference)}
    elif isinstance(reference, TaskData):
        files = named_files(tasks()[reference.name].model_validate(reference.options))
    else:
        files = {}
    return {"said": said, "files": {name: sha256(path) for name, path in files.items()}}


def tasks_of(request: Request) -> tuple[NamedTask, ...]:
    """The tasks with all of their options. Raises EvaluationError, also where lengths are missing."""
    if not request.tasks:
        return ()
    read_lengths(request.lengths)
    return read_tasks(request.tasks, converted(request, EvaluationOptions))


def _tokenizer(folder: Path) -> dict[str, str]:
    return {name: sha256(folder / name) for name in small_files(folder, TOKENIZER)}
