"""Writes the tables, the commands and the picture of docs/smollm2.md out of the kept results. The prose is written by hand."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

from composer.files import write_whole
from evidence.smollm2.budget import budget_table
from evidence.smollm2.plan import HERE, Plan
from evidence.smollm2.report import Model, draw, harness_columns, models_of, tables
from evidence.smollm2.result import RUNS

DOCS = HERE.parents[1] / "docs"
PAGE, PICTURE = DOCS / "smollm2.md", DOCS / "smollm2.png"
BEGIN, END = "<!-- written by python -m evidence.smollm2 --page -->", "<!-- until here -->"


def write(plan: Plan, kept: Path = RUNS, page: Path = PAGE, picture: Path = PICTURE) -> None:
    """Replace the text between the two marks of the page, and draw the picture. Raises OSError and ValueError."""
    models = models_of(plan, kept)
    text = page.read_text(encoding="utf-8")
    if text.count(BEGIN) != 1 or text.count(END) != 1:
        raise ValueError(f"{page}: expected one line {BEGIN!r} and one line {END!r}")
    before, after = text.split(BEGIN)[0], text.split(END)[1]
    write_whole(page, f"{before}{BEGIN}\n\n{contents(plan, models)}\n\n{END}{after}")
    if models:
        draw(plan, models, picture)


def contents(plan: Plan, models: Sequence[Model]) -> str:
    """The tables, the tasks at chance, and the commands."""
    if not models:
        return "No run of this plan is kept yet."
    blocks = [table.markdown() for table in tables(plan, models)]
    if plan.text is not None:
        blocks.append(budget_table(plan, models).markdown())
    return "\n".join([*blocks, *at_chance(plan, models), "### Commands\n", *commands(models)])


def at_chance(plan: Plan, models: Sequence[Model]) -> Iterator[str]:
    """The tasks on which the teacher is no better than a guess, so that a loss cannot show."""
    if not models or models[0].name != plan.baseline or plan.general is None:
        return
    columns = harness_columns(plan)
    low = []
    for name, task in plan.general.tasks.items():
        rows = models[0].rows(columns[name])
        if rows is not None and rows.mean() - 2 * rows.std() / len(rows) ** 0.5 <= task.chance:
            low.append(name)
    yield (
        f"The teacher is at chance on {', '.join(low)}: these columns show nothing.\n"
        if low
        else ("The teacher is above chance on every task of lm-eval, by more than two standard errors.\n")
    )


def commands(models: Sequence[Model]) -> Iterator[str]:
    """The commands of each run. Files are named as in the section on data."""
    for model in models:
        result = model.results[0]
        lines = [f"compose {shlex.join(command)}" for command in result.commands.values()]
        yield f"<details><summary>{model.name}</summary>\n\n```sh\n" + "\n".join(lines) + "\n```\n\n</details>\n"
