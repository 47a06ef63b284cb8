"""Write the tables, the commands and the picture of docs/smollm2.md from the kept results. The prose is written by hand."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

from composer.files import write_whole
from evidence.smollm2.budget import build_budget_table
from evidence.smollm2.plan import HEADS, HERE, PLAN, READING, Plan, read_plan
from evidence.smollm2.report import Model, build_tables, draw, harness_columns, models_of
from evidence.smollm2.result import RUNS

DOCS = HERE.parents[1] / "docs"
PAGE, PICTURE = DOCS / "smollm2.md", DOCS / "smollm2.png"
PLANS = (HEADS, READING, PLAN)
BESIDE = ("lolcats", "lola")
"""Models of the plan of students in the picture of the plan of heads."""


def marks(name: str) -> tuple[str, str]:
    """Return the lines of the page around the tables of a plan."""
    return f"<!-- {name}: written by python -m evidence.smollm2 --page -->", f"<!-- {name}: until here -->"


def write(runs_folder: Path = RUNS, page: Path = PAGE, picture: Path = PICTURE) -> None:
    """Replace the text between the marks of each plan, and draw the picture. Raises OSError and ValueError."""
    text = page.read_text(encoding="utf-8")
    plans = {path: read_plan(path) for path in PLANS}
    models = {path: models_of(plan, runs_folder / path.stem) for path, plan in plans.items()}
    for path, plan in plans.items():
        begin, end = marks(path.stem)
        if text.count(begin) != 1 or text.count(end) != 1:
            raise ValueError(f"{page}: expected one line {begin!r} and one line {end!r}")
        before, after = text.split(begin)[0], text.split(end)[1]
        text = f"{before}{begin}\n\n{format_contents(plan, models[path])}\n\n{end}{after}"
    write_whole(page, text)
    if models[HEADS]:
        draw(plans[HEADS], models[HEADS], picture, [model for model in models[PLAN] if model.name in BESIDE])


def format_contents(plan: Plan, models: Sequence[Model]) -> str:
    """Return the tables, the tasks at chance and the commands as Markdown."""
    if not models:
        return "No run of this plan is kept yet."
    overview, *tables = (table.markdown() for table in build_tables(plan, models))
    if plan.general is not None and plan.text is not None:
        tables.append(build_budget_table(plan, models).markdown())
    details = "\n".join([*tables, *format_chance_tasks(plan, models)])
    commands = "\n".join(format_commands(models))
    return f"{overview}\n{_collapse('All tables', details)}\n{_collapse('Commands', commands)}"


def _collapse(title: str, text: str) -> str:
    return f"<details><summary>{title}</summary>\n\n{text}\n</details>\n"


def format_chance_tasks(plan: Plan, models: Sequence[Model]) -> Iterator[str]:
    """Yield a sentence with the tasks on which the teacher is no better than a guess, so that students cannot be worse."""
    if models[0].name != plan.baseline or plan.general is None:
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
        lines = [f"compose {shlex.join(command)}" for command in model.results[0].commands.values()]
        yield f"{model.name}:\n\n```sh\n" + "\n".join(lines) + "\n```\n"
