"""``known_tasks``: what to learn from and to score on, from the catalogue."""

from __future__ import annotations

import inspect
from typing import ClassVar

from blocks.part import Closed
from composer.commands.fields import FieldFacts, field_facts, plain, table_of
from composer.errors import ComposerError
from composer.evaluation.arguments import KINDS, SHARED_OPTIONS, no_task
from composer.options import argument, function_of, options_class
from composer.tables import Readable, Table, View


class TaskFacts(Readable, Closed):
    """A task. scored: ``written``, ``tokens`` or ``loss``."""

    name: str
    scored: str
    description: str
    source: str
    options: tuple[FieldFacts, ...]

    def view(self) -> View:
        return View(f"{self.name}, scored by {self.scored}", table_of(self.options), (self.description, f"({self.source})"))


class TasksReport(Readable, Closed):
    """The named tasks, or all. One alone shows itself in full."""

    tasks: tuple[TaskFacts, ...]

    def view(self) -> View:
        if len(self.tasks) == 1:
            return self.tasks[0].view()
        rows = tuple((task.name, task.scored, ", ".join(option.name for option in task.options)) for task in self.tasks)
        return View("", (Table("", ("task", "scored by", "options"), rows),))


@options_class
class TasksOptions:
    """List the tasks to train and to score on, each with its options.

    Options follow a task's name: `--tasks passkey,depth=0.5,recall,pairs=16` are two tasks.
    """

    example: ClassVar[str] = 'composer.known_tasks("passkey").tasks[0].options'
    name: str | None = argument("A task to describe in full.", default=None, metavar="[TASK]")


def run_known_tasks(options: TasksOptions) -> TasksReport:
    if options.name is not None and options.name not in KINDS:
        raise ComposerError(no_task(options.name))
    return TasksReport(tasks=tuple(map(_describe, KINDS if options.name is None else [options.name])))


known_tasks = function_of(TasksOptions, run_known_tasks)


def _describe(name: str) -> TaskFacts:
    kind = KINDS[name]
    own = [key for key in kind.model_fields if key not in ("kind", "learn", *SHARED_OPTIONS)]
    return TaskFacts(
        name=name,
        scored=kind.scored,
        description=plain(inspect.getdoc(kind) or ""),
        source=kind.source,
        options=tuple(field_facts(key, kind.model_fields[key]) for key in own),
    )
