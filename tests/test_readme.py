"""The README's table of parts is the catalogue, and its Python runs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from blocks.catalogue import CATALOGUE
from docs.write import readme

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def test_the_table_of_parts_is_the_catalogue() -> None:
    rows = re.findall(r"^\| ([a-z ]+) \| `([a-z0-9_]+)` \| (.+) \|$", README, re.MULTILINE)
    parts = [(role, kind, part.equation.replace("|", r"\|")) for role, kinds in CATALOGUE.items() for kind, part in kinds.items()]
    stale = rows != parts
    assert not stale, "the README's table is not that of the parts as they are: write it anew with `make docs`"


def test_the_table_is_written_out_of_the_catalogue() -> None:
    first, second = [line for line in README.splitlines(keepends=True) if line.startswith("| gate | ")][:2]
    assert readme(README.replace(first, "").replace(second, "| gate | `gone` | nothing |\n")) == readme(README)


def test_the_yaml_is_the_shipped_spec() -> None:
    import composer

    (block,) = re.findall(r"```yaml\n(.*?)```", README, re.DOTALL)
    written = ROOT / "specs" / "lawcat.yaml"
    import yaml

    assert composer.load_spec(yaml.safe_load(block)).head == composer.load_spec(written).head


def test_the_python_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    exec(compile(code, "README.md", "exec"), {})
    assert (tmp_path / "build-output" / "wide" / "config.json").is_file()
