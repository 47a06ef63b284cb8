"""``compose tasks``."""

from __future__ import annotations

import json

from composer.cli.derived import Screen, command
from composer.cli.screen import heading, print_json, print_table, say
from composer.commands.tasks import TaskFacts, TasksOptions, run_known_tasks
from composer.evaluation.arguments import FILES, SHARED_OPTIONS

SCORED = {
    "written": "by what the model writes after the prompt",
    "tokens": "by the answer's tokens, each after the true text before it: the share that is the first choice",
    "loss": "by its loss: nats per token, and their perplexity",
}


@command(TasksOptions, "as_json")
def tasks(options: TasksOptions, screen: Screen) -> None:
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
