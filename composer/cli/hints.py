"""Hints for refused command lines: the option that was probably meant."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

SYNONYMS = {
    "--source": "--from",
    "--output": "--out",
    "--output-dir": "--out",
    "--override": "--set",
    "--length": "--seq",
    "--max-tokens": "--max-new-tokens",
}
"""The names that other programs have for options of this one."""


def add_hint(error: Any) -> None:
    """Extend one of click's errors of arguments: the options to use for an unknown one, or for a source without its option."""
    context = getattr(error, "ctx", None)
    if context is None:
        return
    options = [option for parameter in context.command.params for option in parameter.opts]
    if hasattr(error, "possibilities"):  # an unknown option
        error.possibilities = list(_suggest(error.option_name, context.command.name, options)) or error.possibilities
    elif "unexpected extra argument" in getattr(error, "message", "") and "--from" in options:
        error.message = f"{error.message}. Name a source with --from."


def _suggest(unknown: str, command: str | None, options: list[str]) -> Iterator[str]:
    """Yield the options of a command that set what an unknown option was meant to set, with the setting of the recipe."""
    if SYNONYMS.get(unknown) in options:
        yield SYNONYMS[unknown]
    if not {"--set", "--data"} <= set(options):  # no recipe is run
        return
    from composer.spec.recipe import Finetune, Recipe, Train, Transfer

    field = unknown.removeprefix("--").replace("-", "_")
    stages = {"recipe.train": Train} if command == "train" else {"recipe.transfer": Transfer, "recipe.finetune": Finetune}
    for place, model in {"recipe": Recipe, **stages}.items():
        if field in model.model_fields:
            yield f"--set {place}.{field}=…"
