"""An option is declared once: the command, the Python function, their help and their errors come from one class."""

from __future__ import annotations

import inspect
from dataclasses import FrozenInstanceError
from pathlib import Path
from typing import Any, ClassVar, Literal

import pytest
import torch
import typer
from typer.testing import CliRunner

from composer.cli.main import COMMANDS, load_command
from composer.errors import ComposerError, DataError, SpecError
from composer.options.classes import argument, convert_options, function_of, in_python, option, options_class, options_of
from composer.options.command import Command, Screen, command
from composer.options.shared import OUT, GraphOption, SeedOption, SetOption, to_numbers, to_optional_path, to_texts, to_tokens


@options_class
class CookOptions(SeedOption):
    """Cook a meal.

    The pot is heated first.
    """

    error: ClassVar[type[ComposerError]] = DataError
    example: ClassVar[str] = 'cook("soup")'
    dish: str = argument("Name of the dish. On the command line, - reads it. In Python, also a Dish. It is cooked.")
    out: Path | None = option("Folder of the meal.", default=None, converter=to_optional_path, kw_only=False, **OUT)
    style: Literal["boiled", "fried"] = option("Way of cooking.", default="boiled")
    minutes: int = option("Minutes on the stove. With --style fried, at most 10.", default=5, minimum=1)
    heat: float = option("Share of the full heat.", default=0.5, minimum=0, maximum=1)
    salt: bool = option("Add salt.", default=False)
    tokens: int = option("Tokens.", default="1k", converter=to_tokens(2), metavar="N")
    sizes: tuple[int, ...] = option("Sizes.", default=(), converter=to_numbers(), metavar="N,…")
    spices: tuple[str, ...] = option("Spices. May be repeated.", default=(), converter=to_texts)
    watch: Any = option("Called at each step.", default=None, is_checked=False, is_hidden=True)

    def check(self) -> None:
        if self.style == "fried" and self.minutes > 10:
            raise DataError("--style fried burns after 10 --minutes: use -o")


@options_class
class PotOptions(SeedOption):
    """A subset of the options."""

    minutes: int = option("Minutes.", minimum=0)
    lid: bool = option("Cover the pot.", default=False)


@options_class
class DrawnOptions(SetOption, GraphOption):
    """Options with a name for off, and with values of a path."""


def run_cook(options: CookOptions) -> CookOptions:
    return options


def run_modes(options: CookOptions) -> tuple[bool, ...]:
    return torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.is_autocast_enabled("cpu")


cook = function_of(CookOptions, run_cook)


def test_the_function_has_the_names_types_and_defaults_of_the_class() -> None:
    assert str(inspect.signature(cook)) == (
        "(dish: 'str', out: 'str | os.PathLike[str] | None' = None, *, "
        "style: \"Literal['boiled', 'fried']\" = 'boiled', "
        "minutes: 'int' = 5, heat: 'float' = 0.5, salt: 'bool' = False, tokens: 'TokenCount' = '1k', sizes: 'Numbers' = (), "
        "spices: 'str | Sequence[str]' = (), watch: 'Any' = None, seed: 'int' = 0) -> 'CookOptions'"
    )
    assert (cook.__name__, cook.__module__) == ("cook", __name__)
    lines = (cook.__doc__ or "").splitlines()
    assert lines[:3] == ["Cook a meal.", "", "The pot is heated first."]
    assert '- minutes: Minutes on the stove. With `style="fried"`, at most 10.' in lines
    assert "- dish: Name of the dish. In Python, also a Dish. It is cooked." in lines
    assert "- spices: Spices. One or several." in lines
    assert lines[-2:] == ["", '    cook("soup")']


def test_values_are_converted_and_frozen() -> None:
    options = cook("soup", "kitchen", tokens="4k", sizes="1k,2", spices="salt", heat=1)
    assert (options.out, options.tokens, options.sizes, options.spices) == (Path("kitchen"), 4096, (1024, 2), ("salt",))
    assert cook("soup").tokens == 1024
    with pytest.raises(FrozenInstanceError):
        options.minutes = 3  # pyright: ignore[reportAttributeAccessIssue]


def test_values_are_taken_over_by_name() -> None:
    pot = convert_options(cook("soup", minutes=7, seed=3), PotOptions, lid=True)
    assert (pot.minutes, pot.seed, pot.lid) == (7, 3, True)


WRONG: list[tuple[dict[str, Any], list[str], str]] = [
    ({"minutes": 0}, ["--minutes", "0"], "minutes: expected a whole number of at least 1, got 0"),
    ({"heat": 1.5}, ["--heat", "1.5"], "heat: expected a number of at most 1, got 1.5"),
    ({"tokens": "4q"}, ["--tokens", "4q"], 'tokens: expected a whole number of at least 2, such as 4096 or 4k, got "4q"'),
    ({"sizes": "0"}, ["--sizes", "0"], "sizes: expected a whole number of at least 1, got 0"),
    ({"seed": -1}, ["--seed", "-1"], "seed: expected a whole number of at least 0, got -1"),
]


@pytest.mark.parametrize(("keywords", "flags", "message"), WRONG, ids=[words[2].partition(":")[0] for words in WRONG])
def test_an_error_has_the_name_that_the_user_wrote(keywords: dict[str, Any], flags: list[str], message: str) -> None:
    with pytest.raises(DataError) as in_python:
        cook("soup", **keywords)
    assert str(in_python.value) == message
    with pytest.raises(DataError) as on_command_line:
        app_of(CookOptions)(["soup", *flags], standalone_mode=False)
    assert str(on_command_line.value) == f"--{message}"


def test_other_types_and_words_are_refused() -> None:
    for keywords, message in (
        ({"salt": 1}, "salt: expected True or False, got 1"),
        ({"minutes": True}, "minutes: expected a whole number of at least 1, got True"),
        ({"heat": float("nan")}, "heat: expected a number of at least 0, got nan"),
        ({"style": "boild"}, 'style: "boild" is unknown; did you mean "boiled"? Known: boiled, fried.'),
    ):
        with pytest.raises(DataError) as caught:
            cook("soup", **keywords)  # pyright: ignore[reportArgumentType]
        assert str(caught.value).lower() == message.lower()
    for wrong in ({"minute": 3}, {}):
        with pytest.raises(TypeError):
            cook(*([] if not wrong else ["soup"]), **wrong)  # pyright: ignore[reportCallIssue, reportArgumentType]


def test_contradictions_name_flags_or_parameters() -> None:
    with pytest.raises(DataError, match='^`style="fried"` burns after 10 `minutes`: use `out`$'):
        cook("fish", style="fried", minutes=11)
    with pytest.raises(DataError, match="^--style fried burns after 10 --minutes: use -o$"):
        app_of(CookOptions)(["fish", "--style", "fried", "--minutes", "11"], standalone_mode=False)


def test_options_in_texts_become_parameters() -> None:
    options = options_of(CookOptions)
    for text, expected in (
        ("--minutes: expected more", "minutes: expected more"),
        ("DISH: expected a name", "dish: expected a name"),
        ("Leave --salt out, or say --minutes N", "Leave `salt=True` out, or say `minutes=N`"),
        (
            "--style fried, --style there, --heat 0.5, --sizes 1k,2k.",
            '`style="fried"`, `style` there, `heat=0.5`, `sizes="1k,2k"`.',
        ),
        ("Use `--salt`, -o FOLDER or --out.", "Use `salt=True`, `out=FOLDER` or `out`."),
        ("Run `compose cook --salt`, not --pepper or x--salt", "Run `compose cook --salt`, not --pepper or x--salt"),
    ):
        assert in_python(text, options) == expected
    assert in_python("--no-graph or --graph", options_of(DrawnOptions)) == "`graph=False` or `graph=True`"
    assert in_python("--set a.b=1 --set c=…", options_of(DrawnOptions)) == '`overrides=["a.b=1", "c=…"]`'


def test_an_error_of_the_function_itself_names_parameters() -> None:
    def run_burn(options: CookOptions) -> None:
        raise SpecError(f"{options.dish} is burnt: use --minutes 3")

    with pytest.raises(SpecError, match="^soup is burnt: use `minutes=3`$"):
        function_of(CookOptions, run_burn)("soup")


def app_of(options: type[Any], *seen: Any) -> Any:
    """Return a program with the one command."""

    @command(options, "quiet", "as_json")
    def cook(options: Any, screen: Screen) -> None:
        for call in seen:
            call += [options, screen]

    app = typer.Typer(rich_markup_mode=None)
    app.command(cook.name)(cook.callback)
    return typer.main.get_command(app)


def test_the_command_makes_the_same_options() -> None:
    seen: list[Any] = []
    arguments = "soup -o kitchen --sizes 1k,2 --spices salt --spices dill --tokens 4k --salt --quiet"
    app_of(CookOptions, seen)(arguments.split(), standalone_mode=False)
    options, screen = seen
    assert options == cook("soup", "kitchen", sizes="1k,2", spices=["salt", "dill"], tokens="4k", salt=True)
    assert (screen.quiet, screen.as_json) == (True, False)
    seen.clear()
    app_of(CookOptions, seen)(["soup"], standalone_mode=False)
    assert seen[0] == cook("soup")


def test_the_help_of_the_command_has_the_descriptions() -> None:
    app = typer.Typer(rich_markup_mode=None)

    @app.callback()
    def main() -> None:
        pass

    @command(CookOptions)
    def cook(options: Any, screen: Screen) -> None:
        pass

    app.command()(cook.callback)
    text = " ".join(CliRunner().invoke(app, ["cook", "--help"]).output.split())
    assert "Cook a meal. The pot is heated first." in text
    for name, described in options_of(CookOptions).items():
        assert (described.description in text) != (described.is_hidden or name == "dish"), name
    assert "Name of the dish. On the command line, - reads it. It is cooked." in text
    assert "--style <boiled|fried>" in text
    assert "[default: 1k]" in text
    assert "--quiet" not in text


@pytest.mark.parametrize("command", [load_command(name) for name in COMMANDS], ids=lambda command: command.name)
def test_each_command_is_derived_from_its_class(command: Any) -> None:
    """Descriptions are sentences, and a command has only the options of its class and of the shared ``Screen``."""
    assert isinstance(command, Command)
    parameters = inspect.signature(command.callback).parameters
    assert set(parameters) == {name for name, field in options_of(command.options).items() if not field.is_hidden} | set(
        command.screen
    )
    for field in options_of(command.options).values():
        assert field.description[0].isupper() or field.description[0].isdigit()
        assert field.description.endswith(".")
    assert (command.options.__doc__ or "").partition("\n")[0].endswith(".")


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, lambda: torch.autocast("cpu", torch.bfloat16)])
def test_functions_run_in_the_modes_of_a_command(mode: Any) -> None:
    """In those of their caller, nothing could be trained, and the code of an export would compute no gradients."""
    with mode():
        before = run_modes(CookOptions("soup"))
        assert function_of(CookOptions, run_modes)("soup") == (True, False, False)
        assert run_modes(CookOptions("soup")) == before != (True, False, False)
