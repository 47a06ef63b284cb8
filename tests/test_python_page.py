"""The examples of docs/python.md run in order beside a teacher, and functions return the documented types."""

from __future__ import annotations

import ast
import inspect
import re
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import pytest

import composer
from blocks.part import Closed
from composer.reporting.tables import Readable
from tests.composer.exporting.models import uncompared

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "python.md").read_text(encoding="utf-8")


def test_the_examples_of_the_page_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    (tmp_path / "teacher").symlink_to(ROOT / "examples" / "teacher")
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    with uncompared():
        for block in blocks:
            exec(compile(block, "docs/python.md", "exec"), names)
    assert composer.verify("whole").ok
    assert composer.verify("trained").ok
    assert (tmp_path / "ablation" / "report.json").is_file()


PAGES = [path for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))) if "```python" in path.read_text("utf-8")]


def calls(code: str) -> list[ast.Call]:
    """Return the calls of functions of ``composer``. Nothing of ``composer`` is imported from elsewhere."""
    nodes = list(ast.walk(ast.parse(code)))
    assert not [
        alias.name for node in nodes if isinstance(node, ast.ImportFrom) for alias in node.names if alias.name in dir(composer)
    ]
    return [
        node
        for node in nodes
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and ast.unparse(node.func.value) == "composer"
    ]


def check(call: ast.Call) -> None:
    """Check that the arguments are those of the function."""
    assert isinstance(call.func, ast.Attribute)
    named = {keyword.arg: keyword.value for keyword in call.keywords if keyword.arg is not None}
    inspect.signature(getattr(composer, call.func.attr)).bind(*call.args, **named)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_pages_call_only_existing_functions_and_arguments(page: Path) -> None:
    """Each function is documented once with its arguments."""
    for block in re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL):
        for call in calls(block):
            check(call)


@pytest.mark.parametrize("name", [name for name in dir(composer) if name != "ComposerError"])
def test_docstring_examples_call_only_existing_functions_and_arguments(name: str) -> None:
    doc = inspect.cleandoc(inspect.unwrap(getattr(composer, name)).__doc__ or "")
    for line in re.findall(r"^    (.*\bcomposer\..*)$", doc, re.MULTILINE):
        calls_in_line = calls(line)
        assert calls_in_line
        for call in calls_in_line:
            check(call)


OTHERWISE = {
    "select": "Selection | HeadSelection",
    "build": "Composed",
    "load": "Composed",
    "chat": "Chat",
    "draw": "Picture",
    "serve": "Server",
    "view": "Served",
    "load_spec": "Spec",
    "expand": "dict[str, Spec]",
    "new": "Path",
    "shipped_specs": "dict[str, Path]",
    "schema": "dict[str, Any]",
}
"""What the page says the exceptions are."""


def _returned(function: Callable[..., object]) -> tuple[str, object]:
    """Return the name of a function's return type, and the type, which its module may import only for type checkers."""
    name, module = str(inspect.signature(function).return_annotation), sys.modules[function.__module__]
    for node in ast.walk(ast.parse(inspect.getsource(module))):
        if isinstance(node, ast.ImportFrom) and node.module and any(alias.name == name for alias in node.names):
            return name, getattr(import_module(node.module), name)
    return name, getattr(module, name, None)


@pytest.mark.parametrize("name", [name for name in dir(composer) if name != "ComposerError"])
def test_functions_return_the_documented_types(name: str) -> None:
    annotation, kind = _returned(inspect.unwrap(getattr(composer, name)))
    if name in OTHERWISE:
        assert annotation == OTHERWISE[name]
    else:
        assert isinstance(kind, type)
        assert issubclass(kind, Readable)
        assert issubclass(kind, Closed)


def test_the_tables_name_every_function() -> None:
    named = set(re.findall(r"^\| `([a-z_]+)\(", PAGE, re.MULTILINE))
    assert named == set(dir(composer)) - {"ComposerError"}
