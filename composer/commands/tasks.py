"""``known_tasks``: what to learn from and to score on, from the catalogue."""

from __future__ import annotations

import inspect
import json
from typing import ClassVar

from blocks.part import Closed
from composer.commands.parts import FieldFacts, field_facts, plain, table_of
from composer.errors import ComposerError
from composer.evaluation.arguments import FILES, KINDS, SHARED_OPTIONS, no_task
from composer.options.classes import argument, function_of, options_class
from composer.options.command import Screen, command
from composer.reporting.tables import Readable, Table, View
from composer.reporting.terminal import heading, print_json, print_table, say


class TaskFacts(Readable, Closed):
    """A task. scored: ``written``, ``candidates``, ``tokens`` or ``loss``."""

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
    option_names = [key for key in kind.model_fields if key not in ("kind", "learn", *SHARED_OPTIONS)]
    return TaskFacts(
        name=name,
        scored=kind.scored,
        description=plain(inspect.getdoc(kind) or ""),
        source=kind.source,
        options=tuple(field_facts(kind, key) for key in option_names),
    )


SCORED = {
    "written": "by what the model writes after the prompt",
    "candidates": "by the one of its possible answers that has the highest log probability after the prompt",
    "tokens": "by the answer's tokens, each after the true text before it: the share that is the first choice",
    "loss": "by its loss: nats per token, and their perplexity",
}


@command(TasksOptions, "as_json")
def tasks_command(options: TasksOptions, screen: Screen) -> None:
    report = run_known_tasks(options)
    if screen.as_json:
        print_json([task.model_dump(mode="json") for task in report.tasks])
    elif options.name is None:
        (table,) = report.view().tables
        print_table(table.rows, headers=table.headers)
        say("\nOptions, defaults and source of one: compose tasks TASK")
        say(f"Options of all tasks: {', '.join(SHARED_OPTIONS.values())}; files that several tasks read: --{', --'.join(FILES)}")
    else:
        _print(report.tasks[0])


def _print(task: TaskFacts) -> None:
    heading(task.name)
    print_table(
        [
            *((paragraph,) for paragraph in task.description.split("\n\n")),
            (f"Scored {SCORED[task.scored]}.",),
            (f"Source: {task.source}",),
        ]
    )
    for option in task.options:
        default = "(required)" if option.required else json.dumps(option.default, ensure_ascii=False)
        say(f"\n  {option.name}: {default}")
        print_table([(option.type,), *([(option.description,)] if option.description else [])], indent=6)
