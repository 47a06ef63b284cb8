"""The arguments of an evaluation: tasks with their options, and lengths. Windows of a text file are a task that is scored by its
loss.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import PositiveInt, ValidationError

from blocks.part import Closed
from composer.errors import EvaluationError, TaskError
from composer.evaluation.options import SAMPLES, SHORTEST, EvaluationOptions
from composer.options.arguments import numbers_of
from composer.spec.places import brief, near_and_all, nearest, problem_of
from composer.system.files import MOST_TEXT, read_text_file
from composer.tasks.base import Sample, Scored, Task, stamp
from composer.tasks.catalogue import TASKS
from composer.tasks.writer import Writer


@dataclass(frozen=True)
class LazySamples:
    """The samples of a task at one length, each made when it is needed. draw: makes the sample of an index below ``count``."""

    count: int
    draw: Callable[[int], Sample]


class Perplexity(Closed):
    """Windows of exactly this length, BOS included, that do not overlap. If a text has more of them than samples, the
    samples are spread over all of it."""

    source: ClassVar[str] = "the loss of a language model on any text"
    scored: ClassVar[Scored] = "loss"
    provenance: ClassVar[None] = None
    """Its text is a file that its options name."""

    kind: Literal["perplexity"] = "perplexity"
    text: Path
    """A UTF-8 text file, all of which is read as one text."""
    samples: PositiveInt = 100
    """How many windows at most."""

    @property
    def name(self) -> str:
        return self.kind

    def windows(self, writer: Writer, length: int) -> LazySamples:
        """Raise ``TaskError`` if the text is shorter than one window."""
        ids = _tokens(writer.tokenizer, self.text, stamp(self.text))
        fresh = length - len(writer.begin)
        window_count = len(ids) // fresh if fresh > 0 else 0
        if window_count == 0:
            raise TaskError(f"{self.text} has {len(ids):,} tokens, too few for one window of {length:,}.")
        count = min(window_count, self.samples)

        def window(index: int) -> Sample:
            start = index * window_count // count * fresh
            cut = (*writer.begin, *ids[start : start + fresh].tolist())
            return Sample(cut, (False,) * len(cut), writer.decode(cut))

        return LazySamples(count, window)


@lru_cache(maxsize=2)
def _tokens(tokenizer: Any, path: Path, _: tuple[int, int]) -> np.ndarray:
    """Return all tokens of a text file, int32. The last argument is the file's stamp: a changed file is read again."""
    text = read_text_file(path, TaskError, MOST_TEXT)
    # Not verbose: a text may well be longer than what the model was made for.
    return np.asarray(tokenizer(text, add_special_tokens=False, verbose=False).input_ids, dtype=np.int32)


KINDS: dict[str, type[Task] | type[Perplexity]] = {**TASKS, "perplexity": Perplexity}
"""The tasks that a model can be scored on, by name."""
SHARED_OPTIONS = {"samples": "--samples", "seed": "--seed", "length": "--lengths"}
"""Options that all tasks of an evaluation share, with their names on the command line."""
FILES = ("text", "haystack", "babi")
"""Options of tasks that name files. The command has an option of the same name, for all tasks that read such a file."""


@dataclass(frozen=True)
class NamedTask:
    """A task, and its label: its name followed by the options that the user set."""

    label: str
    task: Task | Perplexity


def read_tasks(tasks: Sequence[str | Task | Perplexity], options: EvaluationOptions) -> tuple[NamedTask, ...]:
    """Return tasks by name, each followed by its options: ``passkey,depth=0.5,recall`` are two tasks. Task objects have their own
    samples and seed. Raises EvaluationError.
    """
    named: list[NamedTask] = []
    used_options: set[str] = set()
    for task in tasks:
        if isinstance(task, Task | Perplexity):
            named.append(NamedTask(task.name, task))
            continue
        if not isinstance(task, str):
            kinds = 'names, such as "passkey,depth=0.5", or tasks of composer.tasks'
            raise EvaluationError(f"tasks: expected {kinds}; got a value of type {type(task).__name__}.")
        for name, task_options in _tasks_with_options(task):
            label = ",".join([name, *(f"{key}={value}" for key, value in task_options.items())])
            shared = _shared_options(name, task_options, options)
            used_options |= shared.keys()
            named.append(NamedTask(label, _validate(label, name, task_options, shared)))
    twice = [task.label for place, task in enumerate(named) if task.label in [before.label for before in named[:place]]]
    if twice:
        raise EvaluationError(f"The task {twice[0]} is named twice; name it once, or with other options.")
    for key in FILES:
        if getattr(options, key) is not None and key not in used_options:
            able = [name for name, kind in KINDS.items() if key in kind.model_fields]
            raise EvaluationError(f"--{key}: none of the chosen tasks reads this file. Tasks that do: {', '.join(able)}.")
    return tuple(named)


def no_task(name: str) -> str:
    """Return the message that there is no task of this name, with similar names and the command that lists all."""
    return f"No task {brief(name)}{near_and_all(name, KINDS, 'tasks')}"


def read_lengths(lengths: Sequence[int]) -> tuple[int, ...]:
    """Return the lengths, each once, in ascending order. Raises EvaluationError."""
    if not lengths:
        raise EvaluationError("No length of samples is set. Set lengths in tokens, such as --lengths 512,1024.")
    return tuple(sorted(set(numbers_of(lengths, "--lengths", EvaluationError, minimum=SHORTEST))))


def _tasks_with_options(text: str) -> list[tuple[str, dict[str, str]]]:
    parted: list[tuple[str, dict[str, str]]] = []
    for word in (part.strip() for part in text.split(",")):
        key, has_value, value = (part.strip() for part in word.partition("="))
        if not has_value:
            if key not in KINDS:
                raise EvaluationError(no_task(key))
            parted.append((key, {}))
        elif not parted or not key:
            raise EvaluationError(f"{brief(word)} follows no task. Options follow their task: passkey,depth=0.5,recall.")
        else:
            name, options = parted[-1]
            if key in options:
                raise EvaluationError(f"{name}: {key} is set twice; set it once.")
            options[key] = value
    return parted


def _shared_options(name: str, task_options: Mapping[str, str], options: EvaluationOptions) -> dict[str, Any]:
    """Return the shared options that this task has and does not set itself."""
    fields = KINDS[name].model_fields
    every = {"samples": options.samples or SAMPLES, "seed": options.seed} | {key: getattr(options, key) for key in FILES}
    return {key: value for key, value in every.items() if key in fields and key not in task_options and value is not None}


def _validate(label: str, name: str, task_options: Mapping[str, str], shared: Mapping[str, Any]) -> Task | Perplexity:
    kind = KINDS[name]
    option_names = [key for key in kind.model_fields if key not in ("kind", "learn", *SHARED_OPTIONS)]
    for key in task_options:
        if key in SHARED_OPTIONS:
            raise EvaluationError(f"{label}: {key} is the same for all tasks: {SHARED_OPTIONS[key]}.")
        if key not in option_names:
            listed = f"Options: {', '.join(option_names)}." if option_names else "It has none."
            raise EvaluationError(f'{label}: unknown option "{key}"{nearest(key, option_names) or "."} {listed}')
    try:
        return kind.model_validate({**shared, **task_options})
    except ValidationError as error:
        details = error.errors(include_url=False)[0]
        key = str(details["loc"][0]) if details["loc"] else "its options"
        if details["type"] == "missing":
            option = f"--{key}" if key in FILES else f"{name},{key}=…"
            more = " (`stories` has built-in texts and the same score)" if name == "perplexity" else ""
            raise EvaluationError(f"{name} needs {key}: set {option}{more}.") from error
        raise EvaluationError(f"{label}: {key} = {brief(details['input'])}: {problem_of(details)}.") from error
