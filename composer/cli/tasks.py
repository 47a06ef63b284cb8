"""``compose tasks``."""

from __future__ import annotations

import inspect
import json
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from composer.cli.options import Json
from composer.cli.screen import heading, print_json, print_table
from composer.errors import ComposerError
from composer.evaluation.arguments import FILES, KINDS, SAID_FOR_ALL
from composer.spec.places import brief, nearest

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
    if name is not None and name not in KINDS:
        raise ComposerError(f"No task {brief(name)}{nearest(name, KINDS) or '.'} Tasks: {', '.join(KINDS)}.")
    chosen = [described(one) for one in (KINDS if name is None else [name])]
    if as_json:
        print_json(chosen)
    elif name is None:
        print_table(
            [(one["name"], one["scored"], ", ".join(option["name"] for option in one["options"])) for one in chosen],
            headers=("task", "scored by", "options"),
        )
        typer.echo("\nOptions, defaults and source of one: compose tasks TASK")
        typer.echo(f"The same for all tasks: {', '.join(SAID_FOR_ALL.values())}; files that several take: --{', --'.join(FILES)}")
    else:
        _print(chosen[0])


def described(name: str) -> dict[str, Any]:
    """A task as a program reads it."""
    kind = KINDS[name]
    properties = kind.model_json_schema()["properties"]
    own = [key for key in kind.model_fields if key not in ("kind", "learn", *SAID_FOR_ALL)]
    return {
        "name": name,
        "scored": kind.scored,
        "description": " ".join((inspect.getdoc(kind) or "").replace("``", "`").split()),
        "source": kind.source,
        "options": [
            {
                "name": key,
                "type": _words(properties[key]),
                "required": kind.model_fields[key].is_required(),
                "default": properties[key].get("default"),
                "description": " ".join((kind.model_fields[key].description or "").replace("``", "`").split()),
            }
            for key in own
        ],
    }


def _print(task: dict[str, Any]) -> None:
    heading(task["name"])
    print_table([(task["description"],), (f"Scored {SCORED[task['scored']]}.",), (f"Source: {task['source']}",)])
    for option in task["options"]:
        default = "(required)" if option["required"] else json.dumps(option["default"], ensure_ascii=False)
        typer.echo(f"\n  {option['name']}: {default}")
        print_table([(option["type"],), *([(option["description"],)] if option["description"] else [])], indent=6)


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
