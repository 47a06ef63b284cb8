"""The examples of docs/python.md run, in their order, where a teacher is."""

from __future__ import annotations

import re
import warnings
from pathlib import Path

import pytest

import composer

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "python.md").read_text(encoding="utf-8")


def test_the_examples_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    (tmp_path / "teacher").symlink_to(ROOT / "examples" / "teacher")
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        for block in blocks:
            exec(compile(block, "docs/python.md", "exec"), names)
    assert composer.verify("whole").ok
    assert composer.verify("trained").ok
    assert (tmp_path / "ablation" / "report.json").is_file()


def test_the_tables_name_every_function() -> None:
    named = set(re.findall(r"^\| `([a-z_]+)\(", PAGE, re.MULTILINE))
    assert named == set(dir(composer)) - {"ComposerError"}
