"""The README's table of parts is the catalogue, and its Python runs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from blocks.catalogue import CATALOGUE

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def test_the_table_of_parts_is_the_catalogue() -> None:
    rows = re.findall(r"^\| ([a-z ]+) \| `([a-z0-9_]+)` \| (.+) \|$", README, re.MULTILINE)
    assert rows == [
        (role, kind, part.equation.replace("|", r"\|")) for role, parts in CATALOGUE.items() for kind, part in parts.items()
    ]


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
