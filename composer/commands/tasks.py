"""``known_tasks``: what to learn from and to score on, from the catalogue."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

from blocks.part import Closed
from composer.errors import ComposerError
from composer.evaluation.arguments import KINDS, SAID_FOR_ALL
from composer.spec.places import brief, nearest
from composer.tables import Readable, Table, View


class OptionFacts(Closed):
    """An option of a task, as behind a comma of ``--tasks``. default: None where it is required."""

    name: str
    type: str
    required: bool
    default: Any
    description: str


class TaskFacts(Closed):
    """A task. scored: ``written``, ``tokens`` or ``loss``."""

    name: str
    scored: str
    description: str
    source: str
    options: tuple[OptionFacts, ...]


class TasksReport(Readable, Closed):
    """Tasks that were asked for."""

    tasks: tuple[TaskFacts, ...]

    def view(self) -> View:
        rows = tuple((one.name, one.scored, ", ".join(option.name for option in one.options)) for one in self.tasks)
        return View("", (Table("", ("task", "scored by", "options"), rows),))


def known_tasks(name: str | None = None) -> TasksReport:
    """The tasks to train and to score on: all, or one. Raises ComposerError where none has that name.

    composer.known_tasks("passkey").tasks[0].options
    """
    if name is not None and name not in KINDS:
        raise ComposerError(f"No task {brief(name)}{nearest(name, KINDS) or '.'} Tasks: {', '.join(KINDS)}.")
    return TasksReport(tasks=tuple(map(_described, KINDS if name is None else [name])))


def _described(name: str) -> TaskFacts:
    kind = KINDS[name]
    properties = kind.model_json_schema()["properties"]
    own = [key for key in kind.model_fields if key not in ("kind", "learn", *SAID_FOR_ALL)]
    options = tuple(
        OptionFacts(
            name=key,
            type=_words(properties[key]),
            required=kind.model_fields[key].is_required(),
            default=properties[key].get("default"),
            description=_one_line(kind.model_fields[key].description),
        )
        for key in own
    )
    return TaskFacts(
        name=name, scored=kind.scored, description=_one_line(inspect.getdoc(kind)), source=kind.source, options=options
    )


def _one_line(text: str | None) -> str:
    return " ".join((text or "").replace("``", "`").split())


def _words(schema: dict[str, Any]) -> str:
    """The type of an option, from its JSON schema."""
    if "anyOf" in schema:
        return " | ".join(_words(one) for one in schema["anyOf"] if one.get("type") != "null")
    if "enum" in schema:
        return " | ".join(map(str, schema["enum"]))
    if "const" in schema:
        return str(schema["const"])
    if schema.get("format") == "path":
        return "a file or a folder"
    known = {"integer": "a whole number", "number": "a number", "boolean": "true or false", "string": "text"}
    signs = {"exclusiveMinimum": ">", "minimum": "≥", "exclusiveMaximum": "<", "maximum": "≤"}
    bounds: Sequence[str] = [f"{sign} {schema[key]:g}" for key, sign in signs.items() if key in schema]
    return " ".join([known[schema["type"]], ", ".join(bounds)]).strip()
