"""What decides the samples of a task: its options, and the files and texts that they name."""

from __future__ import annotations

from pathlib import Path

from composer.evaluation.arguments import NamedTask
from composer.evaluation.perplexity import Perplexity
from composer.evaluation.report import TaskIdentity
from composer.files import sha256
from composer.tasks.base import Task


def task_facts(asked: NamedTask) -> TaskIdentity:
    """The options, files and texts that decide the samples of a task."""
    task = asked.task
    return TaskIdentity(
        label=asked.label,
        scored=task.scored,
        source=task.source,
        options=task.model_dump(mode="json"),
        files={name: sha256(path) for name, path in named_files(task).items()},
        provenance=task.provenance,
    )


def named_files(task: Task | Perplexity) -> dict[str, Path]:
    """The files that a task's options name, by option and name."""
    named = {key: value for key in type(task).model_fields if isinstance(value := getattr(task, key), Path)}
    return {f"{key}/{path.name}": path for key, value in named.items() for path in _files(value)}


def _files(path: Path) -> list[Path]:
    """A file, or the text files of a folder."""
    return sorted(path.glob("*.txt")) if path.is_dir() else [path]
