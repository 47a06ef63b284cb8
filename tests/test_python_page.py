"""The examples of docs/python.md run, in their order, where a teacher is, and functions return what it says."""

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
from composer.tables import Readable

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "python.md").read_text(encoding="utf-8")


def test_the_examples_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    (tmp_path / "teacher").symlink_to(ROOT / "examples" / "teacher")
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, "docs/python.md", "exec"), names)
    assert composer.verify("whole").ok
    assert composer.verify("trained").ok
    assert (tmp_path / "ablation" / "report.json").is_file()


OTHERWISE = {
    "build": "Composed",
    "load": "Composed",
    "draw": "Picture",
    "view": "Served",
    "load_spec": "Spec",
    "expand": "dict[str, Spec]",
    "new": "Path",
    "shipped_specs": "dict[str, Path]",
    "schema": "dict[str, Any]",
}
"""What the page says the exceptions are."""


def _returned(function: Callable[..., object]) -> tuple[str, object]:
    """The name of what it returns, and that itself: its module may import it for those alone who check types."""
    name, module = str(inspect.signature(function).return_annotation), sys.modules[function.__module__]
    for node in ast.walk(ast.parse(inspect.getsource(module))):
        if isinstance(node, ast.ImportFrom) and node.module and any(one.name == name for one in node.names):
            return name, getattr(import_module(node.module), name)
    return name, getattr(module, name, None)


@pytest.mark.parametrize("name", [name for name in dir(composer) if name != "ComposerError"])
def test_what_is_returned_is_what_the_page_says(name: str) -> None:
    said, kind = _returned(inspect.unwrap(getattr(composer, name)))
    if name in OTHERWISE:
        assert said == OTHERWISE[name]
    else:
        assert isinstance(kind, type)
        assert issubclass(kind, Readable)
        assert issubclass(kind, Closed)


def test_the_tables_name_every_function() -> None:
    named = set(re.findall(r"^\| `([a-z_]+)\(", PAGE, re.MULTILINE))
    assert named == set(dir(composer)) - {"ComposerError"}
