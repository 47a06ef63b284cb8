"""The README is short, and its commands, YAML and Python run as written, in order, in a fresh folder."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import pytest
import yaml

import composer
from composer.cli.main import COMMANDS
from tests.composer.programs import composed

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
ELSEWHERE = {"pip install .", "make demo", "make smollm2", "make test"}
"""What sets up and tests a clone, which this test would do within itself."""


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def fresh(tmp_path: Path) -> Path:
    """A folder with the files that the commands name, and without their outputs."""
    for name in ("examples", "specs"):
        shutil.copytree(ROOT / name, tmp_path / name)
    return tmp_path


def test_the_readme_has_at_most_150_lines() -> None:
    assert len(README.splitlines()) <= 150


def test_the_commands_of_the_readme_run(tmp_path: Path) -> None:
    lines = [line for block in blocks("sh") for line in block.splitlines()]
    typed = [line for line in lines if line.partition(" #")[0].strip() not in ELSEWHERE]
    assert len(lines) - len(typed) == len(ELSEWHERE)
    assert sum(line.startswith("compose ") for line in typed) == len(typed) >= 9
    assert not [line for line in typed if set("|<>;&$`*?") & set(line.partition(" #")[0])], "what a shell does is to split them"
    folder, printed = fresh(tmp_path), ""
    for line in typed:
        ended, stdout, stderr = composed(folder, *shlex.split(line, comments=True)[1:])
        assert ended == 0, stderr.decode()
        printed += stdout.decode()
    scores = re.search(r"^ *lawcat-distilled +(\d\.\d+) ± \S+ +(\d\.\d+)", printed, re.MULTILINE)
    assert scores, printed
    assert float(scores[2]) < 0.8, "the student should read on where its teacher, at 1.0, does not"


def test_the_readme_shows_only_existing_commands() -> None:
    code = "\n".join(re.findall(r"```[^`]*```|^ {4}.*$|`[^`\n]+`", README, flags=re.MULTILINE))
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE))
    commands_shown, made = set(re.findall(r"\bcompose ([a-z]+)\b", code)), set(re.findall(r"\bmake ([a-z]+)\b", code))
    assert commands_shown <= COMMANDS.keys()
    assert made <= targets
    assert {"build", "generate"} <= commands_shown
    assert {"demo", "test"} <= made


def test_links_of_the_readme_lead_to_files() -> None:
    text = re.sub(r"^```.*?^```", "", README, flags=re.MULTILINE | re.DOTALL)
    linked = set(re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", text))
    assert not [path for path in sorted(linked) if not (ROOT / path).exists()]


def test_the_yaml_of_the_readme_equals_the_shipped_spec() -> None:
    (block,) = blocks("yaml")
    assert composer.load_spec(yaml.safe_load(block)).head == composer.load_spec(ROOT / "specs" / "lawcat.yaml").head


def test_the_python_of_the_readme_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (code,) = blocks("python")
    monkeypatch.chdir(fresh(tmp_path))
    exec(compile(code, "README.md", "exec"), {})
    assert (tmp_path / "build-output" / "wide" / "config.json").is_file()
