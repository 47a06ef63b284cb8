"""Write the tables, the commands and the picture of docs/smollm2.md from the kept results. The prose is written by hand."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

from composer.files import write_whole
from evidence.smollm2.budget import build_budget_table
from evidence.smollm2.plan import HERE, Plan
from evidence.smollm2.report import Model, build_tables, draw, harness_columns, models_of
from evidence.smollm2.result import RUNS

DOCS = HERE.parents[1] / "docs"
PAGE, PICTURE = DOCS / "smollm2.md", DOCS / "smollm2.png"
BEGIN, END = "<!-- written by python -m evidence.smollm2 --page -->", "<!-- until here -->"


def write(plan: Plan, runs_folder: Path = RUNS, page: Path = PAGE, picture: Path = PICTURE) -> None:
    """Replace the text between the two marks of the page, and draw the picture. Raises OSError and ValueError."""
    models = models_of(plan, runs_folder)
    text = page.read_text(encoding="utf-8")
    if text.count(BEGIN) != 1 or text.count(END) != 1:
        raise ValueError(f"{page}: expected one line {BEGIN!r} and one line {END!r}")
    before, after = text.split(BEGIN)[0], text.split(END)[1]
    write_whole(page, f"{before}{BEGIN}\n\n{format_contents(plan, models)}\n\n{END}{after}")
    if models:
        draw(plan, models, picture)


def format_contents(plan: Plan, models: Sequence[Model]) -> str:
    """Return the tables, the tasks at chance and the commands as Markdown."""
    if not models:
        return "No run of this plan is kept yet."
    blocks = [table.markdown() for table in build_tables(plan, models)]
    if plan.text is not None:
        blocks.append(build_budget_table(plan, models).markdown())
    return "\n".join([*blocks, *format_chance_tasks(plan, models), "### Commands\n", *format_commands(models)])


def format_chance_tasks(plan: Plan, models: Sequence[Model]) -> Iterator[str]:
    """Yield a sentence with the tasks on which the teacher is no better than a guess, so that students cannot be worse."""
    if not models or models[0].name != plan.baseline or plan.general is None:
        return
    columns = harness_columns(plan)
    chance_tasks = []
    for name, task in plan.general.tasks.items():
        rows = models[0].rows(columns[name])
        if rows is not None and rows.mean() - 2 * rows.std() / len(rows) ** 0.5 <= task.chance:
            chance_tasks.append(name)
    yield (
        f"The teacher is at chance on {', '.join(chance_tasks)}: these columns show nothing.\n"
        if chance_tasks
        else ("The teacher is above chance on every task of lm-eval, by more than two standard errors.\n")
    )


def format_commands(models: Sequence[Model]) -> Iterator[str]:
    """Yield the commands of each model's first run. Files are named as in the section on data."""
    for model in models:
        result = model.results[0]
        lines = [f"compose {shlex.join(command)}" for command in result.commands.values()]
        yield f"<details><summary>{model.name}</summary>\n\n```sh\n" + "\n".join(lines) + "\n```\n\n</details>\n"
