"""Commands that are derived from options classes."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import MISSING, dataclass
from typing import Annotated, Any, TypeVar

import typer

from composer.options.classes import SAME, Option, option, options_class, options_of, without_sentences

Options = TypeVar("Options")


@options_class
class Screen:
    """Options of the command line alone: what is printed."""

    quiet: bool = option("Hide progress. Warnings and results are printed.", default=False, flags=("-q", "--quiet"))
    as_json: bool = option("Print JSON, and nothing else, on stdout.", default=False, flags=("--json",))

    @property
    def hides_progress(self) -> bool:
        """True if nothing is printed beside the result."""
        return self.quiet or self.as_json


@dataclass(frozen=True)
class Command:
    """How a command was derived. callback: the function that typer calls."""

    name: str
    options: type
    screen: tuple[str, ...]
    callback: Callable[..., None]


def command(options: type[Options], *screen: str) -> Callable[[Callable[[Options, Screen], None]], Command]:
    """Derive a command from an options class, for a function that runs it and prints the result: ``NAME_command``.

    screen: the fields of ``Screen`` that the command has.
    """

    def derive(run: Callable[[Options, Screen], None]) -> Command:
        fields = {key: entry for key, entry in options_of(options).items() if not entry.is_hidden}
        shown = {key: options_of(Screen)[key] for key in screen}

        def callback(**values: Any) -> None:
            # An option that was left out is None here, and has its default from the class.
            kwargs = {key: values[key] for key, entry in fields.items() if values[key] is not None or entry.command_default is None}
            on_screen = Screen(**{key: values[key] for key in shown})
            options_type: Any = options
            run(options_type(**kwargs), on_screen)

        parameters = [_parameter(key, entry) for key, entry in (fields | shown).items()]
        callback.__name__ = run.__name__.removesuffix("_command")
        callback.__doc__ = inspect.getdoc(options)
        callback.__module__ = run.__module__
        callback.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        callback.__annotations__ = {entry.name: entry.annotation for entry in parameters} | {"return": None}
        return Command(callback.__name__, options, screen, callback)

    return derive


def _parameter(name: str, entry: Option) -> inspect.Parameter:
    """Return the parameter that typer reads."""
    default: Any = entry.default if entry.command_default is SAME else entry.command_default
    default = inspect.Parameter.empty if default is MISSING else default
    if entry.default == () or (entry.is_argument and entry.default is None):
        default = None
    kind = entry.kind if default is not None else entry.kind | None
    more: dict[str, Any] = {
        "help": without_sentences("In Python", entry.description),
        "metavar": entry.metavar,
        "autocompletion": entry.complete,
    }
    if entry.is_argument:
        more["metavar"] = entry.metavar or (name.upper() if entry.default is MISSING else f"[{name.upper()}]")
        declared = typer.Argument(show_default=False, **more)
    else:
        declared = typer.Option(*entry.flags, show_default=default is not None and default is not False, **more)
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, declared])
