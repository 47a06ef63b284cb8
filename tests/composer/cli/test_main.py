"""Every command has help for each option, and reports mistakes as messages with exit codes, never as tracebacks."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import typer

import composer
from composer.cli.main import COMMANDS, INTERRUPTED, MISTAKE, app, load_command
from composer.commands import check as check_module
from composer.errors import BuildError
from tests.composer.cli.conftest import Compose
from tests.composer.programs import ROOT, composed

MISTAKES = [
    ["nonsense"],
    ["build", "lawcat"],
    ["build", "lawcat", "--fresh"],
    ["build", "lawcat", "--fresh", "--from", "."],
    ["build", "nowhere", "--from", "nowhere/at/all"],
    ["build", "lawcat", "--from", "nowhere/at/all"],
    ["build", "lawcat", "--from", ".", "--dtype", "int8"],
    ["check"],
    ["check", "nowhere.yaml"],
    ["show", "lawcat", "--set", "head.feature_map.kind=hedgehgo"],
    ["show", "lawcat", "--expand"],
    ["show", "lawcat", "--fresh"],
    ["explain", "lawcat"],
    ["diff", "lawcat"],
    ["diff", "lawcat", "lawact"],
    ["diff", "lawcat", "ablations/lawcat-rope"],
    ["parts", "hedgehgo"],
    ["explain", "lawcat", "--from", "nowhere/at/all"],
    ["explain", "lawcat", "--from", ".", "--seq", "0"],
    ["generate", "nowhere", "--prompt", "once"],
    ["generate", "nowhere"],
    ["generate", "nowhere", "--prompt", "once", "--chat"],
    ["chat", "nowhere"],
    ["verify", "nowhere"],
    ["eval", "nowhere", "--tasks", "recall", "--lengths", "128"],
    ["eval", "."],
]


def test_a_source_without_its_option_gets_a_hint(compose: Compose) -> None:
    """A misplaced source gives a hint if the command has --from, also in JSON."""
    result = compose("build", "lawcat", "teacher", "--json")
    message = "Got unexpected extra argument(s) (teacher). Name a source with --from."
    assert result.exit_code == 2
    assert message in result.stderr
    assert message in result.stdout
    other = compose("parts", "state", "teacher")
    assert "unexpected extra argument" in other.stderr
    assert "--from" not in other.stderr


@pytest.mark.parametrize(
    ("arguments", "meant"),
    [
        (["explain", "lawcat", "--source", "teacher"], "--from"),
        (["distill", "student", "--fresh-lr=1e-3"], "--set recipe.finetune.fresh_lr=…"),
        (["distill", "student", "--sequence", "64"], "--set recipe.sequence=…"),
        (["train", "student", "--lr", "1e-3"], "--set recipe.train.lr=…"),
        (["inspect", "student", "--prompt", "once"], "--text"),
        (["generate", "student", "--text", "once"], "--prompt"),
        (["build", "lawcat", "--form", "teacher"], "--force, --fresh, --from"),
    ],
    ids=str,
)
def test_an_unknown_option_gives_a_hint(compose: Compose, arguments: list[str], meant: str) -> None:
    result = compose(*arguments)
    assert result.exit_code == MISTAKE
    unknown = next(word for word in arguments if word.startswith("--")).partition("=")[0]
    assert f"No such option: {unknown} (Possible options: {meant})" in result.stderr


def test_unknown_options_of_generate_get_no_hint_of_the_recipe(compose: Compose) -> None:
    assert "No such option: --steps" in compose("generate", "student", "--steps", "4").stderr
    assert "recipe" not in compose("generate", "student", "--steps", "4").stderr


def test_the_list_of_commands_is_complete() -> None:
    assert sorted(COMMANDS) == [
        "ablate",
        "bench",
        "build",
        "calibrate",
        "chat",
        "check",
        "diff",
        "distill",
        "draw",
        "eval",
        "explain",
        "export",
        "generate",
        "inspect",
        "logits",
        "merge",
        "new",
        "parts",
        "push",
        "read",
        "sample",
        "schema",
        "select",
        "serve",
        "show",
        "tasks",
        "train",
        "verify",
        "view",
    ]


@pytest.mark.parametrize("command", COMMANDS)
def test_help_says_what_each_option_is(compose: Compose, command: str) -> None:
    result = compose(command, "--help")
    assert result.exit_code == 0
    text = " ".join(result.output.split())
    for parameter in typer.main.get_command(app).commands[command].params:  # pyright: ignore[reportAttributeAccessIssue]
        help_text = getattr(parameter, "help", None)
        assert help_text, f"{command}: {parameter.name} says nothing"
        assert help_text.split(" [")[0][:40] in text
        assert help_text.rstrip().endswith((".", "."))
        if parameter.param_type_name == "option":
            assert max(parameter.opts, key=len) in text


def test_help_of_all_names_every_command_on_one_line(compose: Compose) -> None:
    output = compose("--help").output
    for command in COMMANDS:
        assert re.search(rf"^  {command} +[A-Z].*\.$", output, flags=re.MULTILINE)
    assert "..." not in output.partition("Commands:")[2]


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_all_has_the_first_line_of_each_command(command: str) -> None:
    """Help is printed without importing a command."""
    loaded = load_command(command)
    assert (loaded.name, COMMANDS[command]) == (command, (loaded.options.__doc__ or "").partition("\n")[0])


@pytest.mark.parametrize(
    ("arguments", "absent"),
    [
        (["--help"], {"pydantic", "yaml", "networkx", "composer.options.classes", "composer.commands", "blocks"}),
        (["check", "lolcats"], {"networkx", "huggingface_hub", "composer.model", "composer.training"}),
        (
            ["explain", "lolcats", "--from", str(ROOT / "examples" / "teacher")],
            {"composer.training", "composer.evaluation"},
        ),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_a_command_imports_what_it_needs(arguments: list[str], absent: set[str]) -> None:
    program = (
        "import atexit, sys; from composer.cli.entry import main\n"
        f"atexit.register(lambda: print(*sys.modules)); sys.argv = ['compose', *{arguments}]; main()"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    imported = set(run.stdout.splitlines()[-1].split())
    assert {"torch", "transformers", "numpy", "jaxtyping", "datasets", "matplotlib", *absent} & imported == set()


def test_version_prints_the_version_of_the_package(compose: Compose) -> None:
    result = compose("--version")
    assert (result.exit_code, result.output) == (0, f"compose {composer.__version__}\n")


def test_a_spec_without_a_source_is_not_explained(compose: Compose) -> None:
    result = compose("explain", "lawcat")
    assert (result.exit_code, result.stderr) == (MISTAKE, "no source is named: set --from SOURCE. Only its config.json is read.\n")


@pytest.mark.parametrize("arguments", MISTAKES, ids=" ".join)
def test_mistakes_are_messages(compose: Compose, arguments: list[str]) -> None:
    result = compose(*arguments)
    assert result.exit_code == MISTAKE
    assert result.stderr.strip()
    assert result.stdout == ""
    assert "Traceback" not in result.output
    assert not os.listdir()


def test_ctrl_c_ends_a_command_with_a_short_message(compose: Compose, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(check_module, "variants_of", interrupted)
    result = compose("check", "lawcat")
    assert result.exit_code == INTERRUPTED
    assert result.stderr == "Interrupted.\n"


def test_errors_of_the_program_itself_are_not_hidden(compose: Compose, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(check_module, "variants_of", broken)
    assert isinstance(compose("check", "lawcat").exception, ZeroDivisionError)


def test_every_line_of_a_message_is_shown(compose: Compose, monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(*_: object) -> None:
        raise BuildError("one [b] thing\nanother")

    monkeypatch.setattr(check_module, "variants_of", wrong)
    assert compose("check", "lawcat").stderr == "one [b] thing\nanother\n"


def test_the_program_prints_its_version_and_refuses_mistakes(tmp_path: Path) -> None:
    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        script = "from composer.cli.main import main; main()"
        environment = {**os.environ, "PYTHONPATH": str(Path(composer.__file__).parent.parent)}
        command = [sys.executable, "-c", script, *arguments]
        return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)

    assert composed(tmp_path, "--version") == (0, f"compose {composer.__version__}\n".encode(), b"")
    wrong = run("check", "lawact")
    assert (wrong.returncode, wrong.stdout) == (MISTAKE, "")
    assert 'did you mean "lawcat"?' in wrong.stderr


@pytest.mark.parametrize("more", [("--set", "--json"), ("--", "--json")], ids=str)
def test_a_value_called_json_is_no_option(compose: Compose, more: tuple[str, ...]) -> None:
    result = compose("check", "no-such-spec", *more)
    assert (result.exit_code, result.stdout) == (MISTAKE, "")
