"""Every public function rejects arguments of a wrong type with a message before it does anything."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import composer
from composer.errors import ComposerError
from tests.composer.programs import ROOT

TEACHER = ROOT / "examples" / "teacher"
FUNCTIONS = {name: getattr(composer, name) for name in composer.__all__ if name != "ComposerError"}
NEEDED: dict[str, tuple[Any, ...]] = {
    "ablate": ("lolcats", TEACHER),
    "bench": (TEACHER,),
    "build": ("lolcats", TEACHER),
    "build_folder": ("lolcats", TEACHER, "out"),
    "calibrate": (TEACHER, "stories", "out"),
    "chat": (TEACHER,),
    "check": ("lolcats",),
    "code": ("lolcats", TEACHER),
    "diff": ("lolcats", "lola"),
    "distill": (TEACHER, "stories", "out"),
    "draw": ("lolcats",),
    "evaluate": (TEACHER, "passkey", 64),
    "expand": ("ablations/lawcat-rope",),
    "explain": ("lolcats", TEACHER),
    "generate": (TEACHER, "once"),
    "inspect": (TEACHER,),
    "load": (TEACHER,),
    "load_spec": ("lolcats",),
    "logits": (TEACHER, "stories", "out"),
    "merge": (TEACHER,),
    "export": (TEACHER,),
    "new": ("mine",),
    "push": (TEACHER, "owner/name"),
    "read": (TEACHER, "book.txt", "book.state"),
    "sample": (TEACHER, "out.jsonl"),
    "select": ("lolcats", TEACHER, "stories", "out"),
    "serve": (TEACHER,),
    "show": ("lolcats",),
    "train": (TEACHER, "stories", "out"),
    "verify": (TEACHER,),
    "view": ("lolcats",),
}
"""Of each function: arguments that come first, of the right types."""


def anything(value: object) -> Any:
    """Return the value with a type that type checkers do not check."""
    return value


class Thing:
    """An object that no function accepts."""


def wrong(annotation: str) -> Iterator[Any]:
    """Return values of other types."""
    is_path = any(word in annotation for word in ("Reference", "Path"))
    if "None" not in annotation and annotation != "Any":
        yield None
    if not any(word in annotation for word in ("int", "float", "Numbers", "TokenCount", "Any")):
        yield 5
    if not any(word in annotation for word in ("Sequence", "Overrides", "Numbers", "Any")):
        yield []
    if annotation != "Any":
        yield Thing()
        yield b"x"
    if is_path or not any(word in annotation for word in ("str", "Overrides", "Any", "Numbers", "TokenCount", "By", "Which")):
        yield "\0"
    if "str" in annotation or is_path:
        yield "\ud800"
    if is_path:
        yield "~nobody_has_this_name/x"
    if "Sequence" in annotation or "Overrides" in annotation:
        yield [None]
        yield [b"x"]


CASES = [
    (name, parameter.name, value)
    for name, function in FUNCTIONS.items()
    for parameter in inspect.signature(function).parameters.values()
    for value in wrong(str(parameter.annotation))
]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_arguments_of_wrong_types_are_refused_by_name(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for function, parameter, value in CASES:
        if function != name:
            continue
        signature = inspect.signature(FUNCTIONS[name])
        arguments = signature.bind_partial(*NEEDED.get(name, ())).arguments
        arguments |= {"ablate": {"out": "out"}, "select": {"keep": 1}}.get(name, {})
        if (name, parameter) == ("check", "specs"):  # mistakes in specs are returned
            with suppress(ComposerError):
                assert not composer.check(value).ok
            continue
        with pytest.raises(ComposerError) as caught:
            FUNCTIONS[name](**{**arguments, parameter: value})
        message = str(caught.value)
        known = (
            parameter,
            parameter.replace("_", "-"),
            "expected a folder",
            "spec",
            "source",
            "dtype",
            "no file",
            "task",
            "lm-eval",
        )
        assert any(word in message for word in known), f"{name}({parameter}={value!r}): {message}"
        assert list(tmp_path.iterdir()) == []


def test_names_that_are_unknown_are_type_errors() -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'sources'"):
        composer.explain("lolcats", sources=TEACHER)  # pyright: ignore[reportCallIssue]
    with pytest.raises(TypeError, match="missing a required argument"):
        composer.load()  # pyright: ignore[reportCallIssue]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: composer.load_spec("lolcats", anything([None])),
            "overrides: expected path=value, several of them or a mapping, got a list",
        ),
        (lambda: composer.build_folder("lolcats", TEACHER, out=anything(5)), "out: expected text or a path or None, got 5"),
        (lambda: composer.load(TEACHER, device=anything([])), "device: expected text, got an empty list"),
        (lambda: composer.sample(TEACHER, "a", progress=anything(5)), "progress: expected True or False or a function, got 5"),
        (lambda: composer.verify("~nobody_has_this_name"), "model: there is no home folder for"),
    ],
)
def test_messages_name_the_expected_type(call: Any, message: str) -> None:
    with pytest.raises(ComposerError) as caught:
        call()
    assert message in str(caught.value)
