"""Everything that the command line does is a public, typed and documented function that reports users' mistakes."""

from __future__ import annotations

import inspect
import json
import re
import subprocess
import sys
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
from typer.main import get_command

import composer
from composer.cli.main import COMMANDS, app, load_command
from composer.options.arguments import read_tokens
from tests.composer.programs import ROOT

FUNCTIONS = {name: getattr(composer, name) for name in dir(composer) if name != "ComposerError"}
CALLED = {"build": "build_folder", "eval": "evaluate", "tasks": "known_tasks"}
"""Commands whose functions have another name."""
RENAMED = {
    "settings": "overrides",
    "harness": "lm_eval",
    "seq": "sequence",
}
ELSEWHERE = {"expanded", "out", "code", "backend", "device", "dtype"}
"""Options of `compose show` that the functions `expand` and `code` are for."""
TEACHER = ROOT / "examples" / "teacher"


def test_public_names_are_pinned() -> None:
    program = "import json, sys, composer; print(json.dumps([dir(composer), sorted({'torch', 'transformers'} & set(sys.modules))]))"
    run = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert json.loads(run.stdout) == [sorted(composer.__all__), []]
    assert dir(composer) == sorted(composer.__all__)
    with pytest.raises(AttributeError, match="has no attribute 'distil'"):
        _ = composer.distil  # pyright: ignore[reportAttributeAccessIssue]


def test_eval_is_an_alias_of_evaluate() -> None:
    assert composer.eval is composer.evaluate  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_is_a_function_with_its_options(command: str) -> None:
    function = FUNCTIONS[CALLED.get(command, command)]
    known = inspect.signature(function).parameters
    for name, parameter in inspect.signature(load_command(command).callback).parameters.items():
        own = RENAMED.get(name, name)
        if own not in known:
            assert name in ("as_json", "quiet") or (command == "show" and name in ELSEWHERE), (
                f"compose {command}: {name} is not in Python"
            )
        elif parameter.default not in (None, inspect.Parameter.empty):
            assert _plain(known[own].default) == _plain(parameter.default), f"{own} of compose {command}"


def _plain(default: object) -> object:
    """Return whether a default may be compared as text: numbers may have thousands or commas on a command line."""
    is_number = isinstance(default, str) and re.fullmatch(r"[\dk,]+", default)
    return read_tokens(cast("str", default), minimum=0) if is_number else default


def test_the_length_that_states_are_counted_at_has_one_name() -> None:
    commands: Any = get_command(app)
    options = {
        name: parameter.opts
        for name, command in commands.commands.items()
        for parameter in command.params
        if parameter.name in ("seq", "sequence") and name != "logits"  # there it is the recipe's: the length of rows
    }
    assert options == {"draw": ["--seq"], "explain": ["--seq"], "select": ["--seq"]}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_function_is_typed_and_documented(name: str) -> None:
    function = inspect.unwrap(FUNCTIONS[name])
    untyped = [
        parameter.name
        for parameter in inspect.signature(function).parameters.values()
        if parameter.annotation is inspect.Parameter.empty
    ]
    assert not untyped
    assert inspect.signature(function).return_annotation is not inspect.Signature.empty
    assert function.__doc__
    page = "\n".join(re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "python.md").read_text(encoding="utf-8"), re.DOTALL))
    assert f"composer.{name}(" in page


MISTAKES: dict[str, tuple[Callable[[], Any], str]] = {
    "build": (lambda: composer.build("nothing", TEACHER), "nothing"),
    "build dtype": (lambda: composer.build("softmax", TEACHER, dtype=typing.cast("Any", "float8")), "float8"),
    "build_folder": (lambda: composer.build_folder("lawcat", "nowhere"), "nowhere"),
    "load": (lambda: composer.load("nowhere"), "nowhere"),
    "load dtype": (lambda: composer.load(TEACHER, dtype=typing.cast("Any", "float8")), "float8"),
    "calibrate": (lambda: composer.calibrate("nowhere", "texts.jsonl"), "nowhere"),
    "distill": (lambda: composer.distill("nowhere", "texts.jsonl"), "nowhere"),
    "distill stage": (lambda: composer.distill("nowhere", "texts", stage=typing.cast("Any", "fintune")), 'did you mean "finetune"'),
    "train": (lambda: composer.train("nowhere", "texts.jsonl"), "nowhere"),
    "merge": (lambda: composer.merge("nowhere"), "nowhere"),
    "verify": (lambda: composer.verify(TEACHER), "composition.json"),
    "evaluate": (lambda: composer.evaluate(TEACHER, "paskey", 128), 'did you mean "passkey"'),
    "evaluate samples": (lambda: composer.evaluate(TEACHER, "passkey", 128, samples=-1), "samples"),
    "evaluate lengths": (lambda: composer.evaluate(TEACHER, "passkey", "many"), "lengths: expected"),
    "evaluate dtype": (lambda: composer.evaluate(TEACHER, "passkey", 128, dtype=typing.cast("Any", "half")), "dtype"),
    "bench": (lambda: composer.bench(TEACHER), "nothing to time"),
    "bench prefill": (lambda: composer.bench(TEACHER, prefill=typing.cast("Any", [1.5])), "1.5"),
    "select": (
        lambda: composer.select("lawcat", TEACHER, "stories", "out"),
        "Set `keep=N`, the number of layers to keep, or `budget=BYTES`",
    ),
    "select by": (lambda: composer.select("lawcat", TEACHER, "stories", "out", keep=1, by=typing.cast("Any", "eror")), "error"),
    "select keep": (lambda: composer.select("lawcat", TEACHER, "stories", "out", keep=3), "2 layers"),
    "inspect": (lambda: composer.inspect("nowhere"), "nowhere"),
    "inspect task": (lambda: composer.inspect(TEACHER, tasks="paskey"), 'did you mean "passkey"'),
    "ablate": (lambda: composer.ablate("lawcat", out="out"), "to build from a model"),
    "ablate specs": (
        lambda: composer.ablate(typing.cast("Any", 3), TEACHER, out="out", tasks="passkey", lengths=64),
        "a spec is a name",
    ),
    "ablate seeds": (lambda: composer.ablate("lawcat", TEACHER, out="out", tasks="passkey", lengths=64, seeds=[]), "seed"),
    "ablate jobs": (lambda: composer.ablate("lawcat", TEACHER, out="out", tasks="passkey", jobs=0), "jobs"),
    "generate": (lambda: composer.generate("nowhere", "Once"), "nowhere"),
    "generate top_p": (
        lambda: composer.generate(TEACHER, "Once", temperature=1.0, top_p=2.0),
        "of at most 1, got 2",
    ),
    "generate device": (lambda: composer.generate(TEACHER, "Once", device="tpu"), "tpu"),
    "chat": (lambda: composer.chat("nowhere"), "nowhere"),
    "chat template": (lambda: composer.chat(TEACHER), "no chat template"),
    "sample": (lambda: composer.sample("nowhere", "texts.jsonl"), "nowhere"),
    "sample texts": (lambda: composer.sample(TEACHER, "texts.jsonl", texts=0), "texts: expected"),
    "serve": (lambda: composer.serve("nowhere"), "nowhere"),
    "serve device": (lambda: composer.serve(TEACHER, device="tpu"), "tpu"),
    "show": (lambda: composer.show("nothing"), "nothing"),
    "show fresh": (lambda: composer.show("lawcat", TEACHER, fresh=True), "leave one out"),
    "code": (lambda: composer.code("lawcat"), "Add a source: `source=SOURCE`"),
    "check": (lambda: composer.check("lawcat", "nowhere"), "nowhere"),
    "diff": (lambda: composer.diff("lawcat", "nothing"), "nothing"),
    "diff draw": (lambda: composer.diff("lawcat", "lola", draw="both.png"), "pictures are SVG"),
    "draw": (lambda: composer.draw("nothing"), "nothing"),
    "draw dtype": (lambda: composer.draw("lawcat", dtype=typing.cast("Any", "half")), "half"),
    "draw sequence": (lambda: composer.draw("lawcat", sequence=0), "sequence"),
    "view": (lambda: composer.view("nothing"), "nothing"),
    "explain": (lambda: composer.explain("lawcat", TEACHER, sequence=0), "sequence"),
    "parts": (lambda: composer.parts("hedgehogs"), 'did you mean "hedgehog"'),
    "parts of no name": (lambda: composer.parts(typing.cast("Any", 3)), "name: expected text"),
    "known_tasks": (lambda: composer.known_tasks("paskey"), 'did you mean "passkey"'),
    "new": (lambda: composer.new("No Name"), "No Name"),
    "expand": (lambda: composer.expand("lawcat"), "no sweep"),
}


@pytest.mark.parametrize("what", MISTAKES)
def test_mistakes_raise_readable_errors(what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    call, message = MISTAKES[what]
    with pytest.raises(composer.ComposerError) as caught:
        call()
    assert message in str(caught.value)
    assert not list(tmp_path.iterdir())
