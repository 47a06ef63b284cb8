"""The README is short, and its commands, YAML and Python run as written, in order, in a fresh folder.

A fenced block runs without the network. A block by indentation downloads a model first: its commands are parsed, and each names
only repositories of the Hub, shipped specs, and the outputs of earlier lines.
"""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import pytest
import typer
import yaml

import composer
from composer.cli.main import COMMANDS, load_command
from composer.spec.shipped import shipped_specs
from tests.composer.programs import composed

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
ELSEWHERE = {"make demo", "make smollm2"}
"""Commands that set up a clone, which this test would do within itself."""
UNFENCED = re.sub(r"^```.*?^```", "", README, flags=re.MULTILINE | re.DOTALL)
DOWNLOADING = [block.splitlines() for block in re.findall(r"(?:^ {4}\S.*\n)+", UNFENCED, re.MULTILINE)]
"""The lines of each block by indentation."""


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


def test_the_blocks_by_indentation_begin_with_a_download_and_can_be_copied() -> None:
    assert len(DOWNLOADING) == 2
    for lines in DOWNLOADING:
        made, source = set[str](), re.search(r"--from (\w[\w-]*/[\w.-]+)", lines[0])
        assert source, "a block that needs no network is fenced with `sh`"
        for line in lines:
            program, name, *arguments = shlex.split(line, comments=True)
            assert program == "compose"
            single = typer.Typer(add_completion=False)
            single.command(name)(load_command(name).callback)
            parameters = typer.main.get_command(single).make_context(name, arguments).params
            named = [parameters.get(key) for key in ("spec", "source", "model", "data", "models")]
            words = [str(word) for value in named if value for word in ([value] if isinstance(value, str | Path) else value)]
            known = {source[1], *made, *shipped_specs()}
            assert not [
                word for word in words if word not in known and not word.startswith("hub:") and Path(word).parts[0] not in made
            ], line
            made.add(str(parameters.get("out")))


def test_the_readme_shows_only_existing_commands() -> None:
    code = "\n".join(re.findall(r"```[^`]*```|^ {4}.*$|`[^`\n]+`", README, flags=re.MULTILINE))
    targets = set(re.findall(r"^([a-z0-9]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE))
    commands_shown, made = set(re.findall(r"\bcompose ([a-z]+)\b", code)), set(re.findall(r"\bmake ([a-z0-9]+)\b", code))
    assert commands_shown <= COMMANDS.keys()
    assert made <= targets
    assert {"build", "generate"} <= commands_shown
    assert {"demo", "smollm2"} <= made


def test_links_of_the_readme_lead_to_files() -> None:
    linked = set(re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", UNFENCED))
    assert not [path for path in sorted(linked) if not (ROOT / path).exists()]


def test_the_yaml_of_the_readme_equals_the_shipped_spec() -> None:
    (block,) = blocks("yaml")
    assert composer.load_spec(yaml.safe_load(block)).head == composer.load_spec(ROOT / "specs" / "lawcat.yaml").head


def test_the_python_of_the_readme_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (code,) = blocks("python")
    monkeypatch.chdir(fresh(tmp_path))
    exec(compile(code, "README.md", "exec"), {})
    assert (tmp_path / "build-output" / "wide" / "config.json").is_file()
