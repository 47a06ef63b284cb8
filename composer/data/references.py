"""References to data: a file, a data set of the Hub, or a task, with options after commas: ``moby-dick.txt,by=line``."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, Field, NonNegativeInt, PositiveInt, StringConstraints, ValidationError

from blocks.part import Closed
from composer.errors import DataError
from composer.spec.places import brief, near_and_all, nearest, problem_of

if TYPE_CHECKING:
    from composer.tasks.base import Task

HUB = "hub:"
SHARE = 0.05
"""The share of documents that is held out for evaluation."""
RowFormat = Literal["messages", "alpaca", "completion", "text"]
Named = Annotated[str, StringConstraints(min_length=1)]
Validated = TypeVar("Validated", bound=BaseModel)


class Slice(Closed):
    """Options that every reference has."""

    skip: NonNegativeInt = 0
    """Records to leave out at the start."""
    limit: PositiveInt | None = None
    """Records to read at most, after those left out."""


class RecordOptions(Slice):
    """Options of references to records with columns."""

    format: RowFormat | None = None
    """How to read a record. Left out: the first of messages, alpaca, completion and text whose columns are there, and
    hold something where others do not."""
    column: Named | None = None
    """The column of the text, where it is not called ``text``; with ``format=messages``, of the messages."""
    empty: Literal["refuse", "skip"] = "refuse"
    """Whether a record with nothing in it is an error, or is left out and counted."""


class FileData(RecordOptions):
    """A file (JSON lines, JSON, Parquet, CSV, plain text), a folder of such files, or a pattern such as ``data/*.jsonl``."""

    kind: Literal["file"] = "file"
    path: str
    by: Literal["document", "paragraph", "line"] | None = None
    """What a document is in plain text: the whole file (left out: so), what blank lines part, or a line."""

    @property
    def title(self) -> str:
        return self.path


class HubData(RecordOptions):
    """A data set of the Hugging Face Hub."""

    kind: Literal["hub"] = "hub"
    name: Named
    split: Named = "train"
    """Its own name of a split; ``train[:10%]`` is a part of it."""
    config: Named | None = None
    """The subset, where it has several."""
    revision: Named | None = None
    """A branch, a tag or a commit."""

    @property
    def title(self) -> str:
        return HUB + self.name


class TaskData(Slice):
    """A task of ``composer.tasks``, which makes its texts itself."""

    kind: Literal["task"] = "task"
    name: str
    options: dict[str, str] = Field(default_factory=dict)
    """The task's own options, as they were written."""

    @property
    def title(self) -> str:
        return self.name

    @property
    def length(self) -> int | None:
        """The largest number of tokens of its samples, if its options set it."""
        return self.task().length

    @property
    def samples(self) -> int:
        """How many it makes."""
        return self.task().samples

    def task(self) -> Task:
        """Return the task with its options."""
        return tasks()[self.name].model_validate(self.options)


DataReference = FileData | HubData | TaskData


def tasks() -> Mapping[str, type[Task]]:
    """Return every task, by name."""
    from composer.tasks.catalogue import TASKS

    return TASKS


def parse_reference(text: str) -> DataReference:
    """``REF[,key=value…]``. REF is ``hub:owner/name``, a task's name, or a path (``./passkey`` is one, ``passkey`` is the task).

    Nothing is opened. Raises DataError on an option that REF does not have.
    """
    name, options = (text, {}) if os.path.exists(text) else _split(text)
    if not name:
        raise DataError(f"{brief(text)}: expected a file, {HUB}owner/name or a task, and options such as limit=1000 after commas")
    if name.startswith(HUB):
        return _validate(HubData, {"name": name.removeprefix(HUB)}, options, text)
    if name in tasks():
        common = {key: value for key, value in options.items() if key in Slice.model_fields}
        task_options = {key: value for key, value in options.items() if key not in common}
        _validate(tasks()[name], {}, task_options, text, also=tuple(Slice.model_fields))
        return _validate(TaskData, {"name": name, "options": task_options}, common, text)
    if nearest(name, tasks()) and not os.path.exists(name) and not options.keys() <= FileData.model_fields.keys():
        meant = near_and_all(name, tasks(), "tasks", "the tasks")  # whose options they are
        raise DataError(f"{text}: no file, folder or task {brief(name)}{meant}")
    return _validate(FileData, {"path": name}, options, text)


def _split(text: str) -> tuple[str, dict[str, str]]:
    name, *settings = text.split(",")
    options: dict[str, str] = {}
    for option in settings:
        key, sign, value = (part.strip() for part in option.partition("="))
        if not sign or not key:
            raise DataError(f"{text}: {brief(option)} is no option; expected key=value, such as limit=1000")
        if key in options:
            raise DataError(f"{text}: {key} is set twice; set it once")
        options[key] = value
    return name.strip(), options


def _validate(
    model: type[Validated], fields: dict[str, Any], options: dict[str, str], text: str, also: tuple[str, ...] = ()
) -> Validated:
    """Return the model with the options. also: further options for the message to list. Raises DataError."""
    option_names = [key for key in model.model_fields if key not in ("kind", *fields)]
    unknown = [key for key in options if key not in option_names]
    if unknown:
        option_names += also
        guess = nearest(unknown[0], option_names) or "."
        raise DataError(f'{text}: unknown option "{unknown[0]}"{guess} Options: {", ".join(option_names)}')
    try:
        return model.model_validate(fields | options)
    except ValidationError as error:
        details = error.errors(include_url=False)[0]
        key = ".".join(map(str, details["loc"])) or "its options"
        if details["type"] == "missing":
            raise DataError(f"{text}: needs {key}: {text},{key}=…") from error
        shown = f" = {brief(details['input'])}" if details["loc"] else ""
        raise DataError(f"{text}: {key}{shown}: {problem_of(details)}") from error
