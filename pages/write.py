"""Writes what follows from the catalogues: the tables of parts, of tasks and of kernels, and the JSON schema; and
the tables of what was measured on a GPU, of which one is part of the product. ``make docs``."""

from __future__ import annotations

import json
import re
from pathlib import Path

from blocks.catalogue import CATALOGUE
from composer.drawing.picture import TYPICAL
from composer.graph.lowering import AUTO
from composer.graph.measured import TABLE, read_table
from composer.spec.explain import explain_resolved
from composer.spec.loading import load_spec
from composer.spec.resolve import resolve
from composer.spec.schema import json_schema
from composer.spec.shipped import shipped_specs
from composer.tasks.base import Task
from composer.tasks.catalogue import TASKS
from pages import commands
from pages.measured import MEASUREMENTS, build_measured_forms, measurements
from pages.results import page
from tests.laws.published.compared import COMPARED

ROOT = Path(__file__).parents[1]
PART_TABLE, TASK_TABLE, SCHEMA = ROOT / "docs" / "parts.md", ROOT / "docs" / "tasks.md", ROOT / "specs" / "schema.json"
HEADER = "| role | kind | what it computes |\n|---|---|---|\n"
JSON_PAGE = ROOT / "docs" / "reference" / "json.md"
COMMANDS_PAGE = ROOT / "docs" / "reference" / "commands.md"
KERNEL_TABLE = ROOT / "docs" / "kernels.md"
KERNEL_HEADER = "| spec | head | parts | many tokens | one token |\n|---|---|---|---|---|\n"
PUBLISHED_TABLE = ROOT / "docs" / "published.md"
PUBLISHED_HEADER = "| spec | compared with |\n|---|---|\n"
TASK_HEADER = "| task | own options | scored by | after |\n|---|---|---|---|\n"


def list_parts(text: str) -> str:
    """Return the page of parts with the table of the catalogue; the rest of the page is unchanged."""
    bar = r"\|"
    rows = [
        f"| {role} | `{kind}` | {part.equation.replace('|', bar)} |\n"
        for role, kinds in CATALOGUE.items()
        for kind, part in kinds.items()
    ]
    return replace_rows(text, HEADER, rows)


def list_tasks(text: str) -> str:
    """Return the page of tasks with the table of their catalogue; the rest of the page is unchanged."""
    rows = []
    for name, task in TASKS.items():
        own = [f"`{option}`" for option in task.model_fields if option not in {"kind", *Task.model_fields}]
        rows.append(f"| `{name}` | {', '.join(own)} | {task.scored} | {task.source} |\n")
    return replace_rows(text, TASK_HEADER, rows)


def list_kernels(text: str) -> str:
    """Return the page of kernels with the table of the forms on a GPU. Parts that one form computes together are one row."""
    rows: dict[tuple[str, ...], list[str]] = {}
    for name in shipped_specs():
        if name.startswith("ablations/"):
            continue
        spec = load_spec(name, ["trunk=null"] if load_spec(name).trunk else [])
        for group in explain_resolved(resolve(spec, TYPICAL), device="cuda", dtype="bfloat16").groups:
            for part in group.parts:
                if part.backend != AUTO:
                    form = f"{part.backend}: {part.form}"
                    step_form = "the same" if part.decode is None else part.decode
                    if part.decode_backend not in (AUTO, None):
                        step_form = f"{part.decode_backend}: {step_form}"
                    rows.setdefault((f"`{name}`", group.head, form, step_form), []).append(part.part)
    lines = [
        f"| {name} | {head} | {', '.join(parts)} | {form} | {step_form} |\n"
        for (name, head, form, step_form), parts in rows.items()
    ]
    return replace_rows(text, KERNEL_HEADER, lines)


def compare_published(text: str) -> str:
    """Return the page of published layers with the table of what each spec is compared with."""
    rows = [f"| [{name}](../specs/{name}.yaml) | {compared.what} |\n" for name, compared in COMPARED.items()]
    return replace_rows(text, PUBLISHED_HEADER, rows)


def replace_rows(text: str, header: str, rows: list[str]) -> str:
    """Return the text with these rows below the header of a table, in place of those that it has."""
    before, found_header, after = text.partition(header)
    assert found_header, f"a table has lost its header: {header.splitlines()[0]}"
    return before + header + "".join(rows) + re.sub(r"\A(\|.*\n)*", "", after)


def schema() -> str:
    """Return the JSON schema as ``compose schema`` prints it."""
    return json.dumps(json_schema(), indent=2, ensure_ascii=False) + "\n"


def main() -> None:
    TABLE.write_text(build_measured_forms(), encoding="utf-8")
    read_table.cache_clear()  # the table of kernels depends on it
    PART_TABLE.write_text(list_parts(PART_TABLE.read_text(encoding="utf-8")), encoding="utf-8")
    TASK_TABLE.write_text(list_tasks(TASK_TABLE.read_text(encoding="utf-8")), encoding="utf-8")
    KERNEL_TABLE.write_text(list_kernels(KERNEL_TABLE.read_text(encoding="utf-8")), encoding="utf-8")
    PUBLISHED_TABLE.write_text(compare_published(PUBLISHED_TABLE.read_text(encoding="utf-8")), encoding="utf-8")
    SCHEMA.write_text(schema(), encoding="utf-8")
    JSON_PAGE.write_text(page(), encoding="utf-8")
    COMMANDS_PAGE.write_text(commands.page(), encoding="utf-8")
    MEASUREMENTS.write_text(measurements(MEASUREMENTS.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
