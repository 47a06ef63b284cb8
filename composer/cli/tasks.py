"""``compose tasks``."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

import composer
from composer.cli.options import Json
from composer.cli.screen import heading, print_json, print_table, say
from composer.evaluation.arguments import FILES, SHARED_OPTIONS

if TYPE_CHECKING:
    from composer.commands.tasks import TaskFacts

SCORED = {
    "written": "by what the model writes after the prompt",
    "tokens": "by the answer's tokens, each after the true text before it: the share that is the first choice",
    "loss": "by its loss: nats per token, and their perplexity",
}


def tasks(
    name: Annotated[str | None, typer.Argument(metavar="[TASK]", help="A task to describe in full.")] = None,
    as_json: Json = False,
) -> None:
    """List the tasks to train and to score on, each with its options.

    Options stand behind a task's name: `--tasks passkey,depth=0.5,recall,pairs=16` are two.
    """
    report = composer.known_tasks(name)
    if as_json:
        print_json([one.model_dump(mode="json") for one in report.tasks])
    elif name is None:
        (table,) = report.view().tables
        print_table(table.rows, headers=table.headers)
        say("\nOptions, defaults and source of one: compose tasks TASK")
        say(f"The same for all tasks: {', '.join(SHARED_OPTIONS.values())}; files that several take: --{', --'.join(FILES)}")
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
