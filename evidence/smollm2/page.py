"""Write the tables and the picture of docs/smollm2.md, and all of docs/reference/smollm2.md, from the kept results.

The prose of the first page is written by hand. The second has every table and the commands of all runs.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

from composer.system.files import write_whole
from evidence.smollm2.budget import build_budget_table
from evidence.smollm2.plan import COMPRESSED, FLAGSHIP, HEADS, HERE, PLAN, READING, SELECTORS, Plan, read_plan
from evidence.smollm2.report import Model, build_tables, draw, harness_columns, models_of
from evidence.smollm2.result import RUNS

DOCS = HERE.parents[1] / "docs"
PAGE, PICTURE, REFERENCE = DOCS / "smollm2.md", DOCS / "smollm2.png", DOCS / "reference" / "smollm2.md"
PLANS = (FLAGSHIP, HEADS, SELECTORS, READING, COMPRESSED, PLAN)
HEADING = """# Figures of SmolLM2's students

All tables of [smollm2.md](../smollm2.md), which explains them, and the commands of all runs: one section for each plan in
`evidence/smollm2`. A star marks a score whose paired difference to the teacher has a 95 % interval without 0. Written by
`python -m evidence.smollm2 --page`.
"""
NO_RUN = "No run of this plan is kept yet."
PICTURED = {
    HEADS: ("teacher", "heads-0", "heads-1", "heads-3", "heads-8", "heads-18", "restored-18"),
    FLAGSHIP: ("flagship",),
    COMPRESSED: ("lola-176",),
}
"""The models in the picture, by their plans. All plans have the same needles in the same book."""


def marks(name: str) -> tuple[str, str]:
    """Return the lines of the page around the tables of a plan."""
    return f"<!-- {name}: written by python -m evidence.smollm2 --page -->", f"<!-- {name}: until here -->"


def write(runs_folder: Path = RUNS, page: Path = PAGE, picture: Path = PICTURE, reference: Path = REFERENCE) -> None:
    """Replace the text between the marks of each plan, write the reference, and draw the picture. Raises OSError and ValueError."""
    text = page.read_text(encoding="utf-8")
    plans = {path: read_plan(path) for path in PLANS}
    models = {path: models_of(plan, runs_folder / path.stem) for path, plan in plans.items()}
    for path, plan in plans.items():
        begin, end = marks(path.stem)
        if text.count(begin) != 1 or text.count(end) != 1:
            raise ValueError(f"{page}: expected one line {begin!r} and one line {end!r}")
        before, after = text.split(begin)[0], text.split(end)[1]
        text = f"{before}{begin}\n\n{format_overview(plan, models[path])}\n{end}{after}"
    write_whole(page, text)
    sections = [f"## {path.stem}\n\n{format_details(plan, models[path])}" for path, plan in plans.items()]
    write_whole(reference, "\n".join([HEADING, *sections]))
    if models[HEADS]:
        shown, *others = ([model for model in models[path] if model.name in names] for path, names in PICTURED.items())
        draw(plans[HEADS], shown, picture, [model for several in others for model in several])


def format_overview(plan: Plan, models: Sequence[Model]) -> str:
    """Return the first table of a plan as Markdown."""
    return next(iter(build_tables(plan, models))).markdown() if models else f"{NO_RUN}\n"


def format_details(plan: Plan, models: Sequence[Model]) -> str:
    """Return the other tables, the tasks at chance and the commands as Markdown."""
    if not models:
        return f"{NO_RUN}\n"
    _, *tables = (table.markdown() for table in build_tables(plan, models))
    if plan.general is not None and plan.text is not None:
        tables.append(build_budget_table(plan, models).markdown())
    commands = "\n".join(format_commands(models))
    return "\n".join([*tables, *format_chance_tasks(plan, models), _collapse("Commands", commands)])


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
