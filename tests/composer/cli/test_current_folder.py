"""No file of the current folder runs or matters unless the user names it, whatever a command starts: modules, settings, plots.

For ``python -m composer``, ``python -c`` and an interactive Python, Python itself puts the current folder first, and no package can
change that. The console script ``compose``, scripts in other folders, and the processes that they start are safe.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from importlib.metadata import packages_distributions
from multiprocessing import get_context
from pathlib import Path

import pytest

import composer
from composer.cli import entry
from composer.system.subprocesses import SAFE_PATH, environment_of_child, protected_children
from tests.composer.training.runs import RECIPE, SPEC, make_student
from tests.test_house import ROOT, named

pytestmark = pytest.mark.long

TEXT = "once upon a time there was a cat"
WORK: tuple[tuple[str, ...], ...] = (
    ("check", "lolcats"),
    ("build", "lolcats", "--from", "IN/teacher", "-o", "OUT/built"),
    ("inspect", "IN/tiny", "--text", "IN/text.txt", "-o", "OUT/report"),
    ("generate", "IN/tiny", "--prompt", TEXT, "--max-new-tokens", "2", "--chat"),
    ("view", "--no-browser"),
)
"""Commands that call libraries which read settings, such as transformers, Matplotlib and Gradio, each with the least work
that it does. IN and OUT are folders.
"""
DRIVER = """
import json, os, sys
from typer.testing import CliRunner
from composer.cli.main import app
from composer.commands.view import Served

def wait(server):
    raise KeyboardInterrupt

Served.wait = wait
if __name__ == "__main__":  # processes that it starts import it
    for words in json.load(open(sys.argv[1])):
        result = CliRunner().invoke(app, words, input="hello\\n", prog_name="compose")
        print(json.dumps([words, result.exit_code, result.output[-1000:], repr(result.exception)]), flush=True)
        assert not {"", os.getcwd()} & set(sys.path), words
"""
CANARY = "open({!r}, 'w').close()\nraise ImportError('a file of the current folder has run')\n"
WAYS = {
    "composer/ablation/runner.py": "protected_children",
    "composer/benching/memory.py": "environment_of_child",
    "composer/exporting/gguf/folder.py": "environment_of_child",
    "composer/exporting/comparison.py": "environment_of_child",
    "composer/data/chat_templates.py": "environment_of_child",
}
"""The files that start processes, and the function of ``composer.system.subprocesses`` by which they do."""
STARTS = re.compile(
    r"\b(subprocess\.|Popen|ProcessPoolExecutor|get_context|os\.(exec|spawn|posix_spawn|system|popen)|mp\.spawn|num_proc"
    r"|num_workers|sys\.executable)"
)


def write_canaries(folder: Path, ran: Path) -> None:
    """Write a module under the name of each module that a process could import, and settings that libraries read."""
    installed = {name for name in packages_distributions() if name.isidentifier()}
    for name in {*sys.stdlib_module_names, *installed, "composer", "blocks", "converters", "sitecustomize", "usercustomize"}:
        (folder / f"{name}.py").write_text(CANARY.format(str(ran / name)))
    (folder / "matplotlibrc").write_bytes(b"text.usetex: True\nsavefig.dpi: 3\n\xff\xfe\n")
    for name in (".env", "pyproject.toml", "setup.cfg", "config.json", "tokenizer.json", "tokenizer_config.json", "spec.yaml"):
        (folder / name).write_text("not what anybody expects: [")


@pytest.fixture
def inputs(teacher: Path, tmp_path: Path) -> Path:
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "text.txt").write_text(TEXT)
    (folder / "teacher").symlink_to(teacher)
    make_student(folder / "tiny", teacher, SPEC | {"recipe": RECIPE})
    settings = json.loads((folder / "tiny" / "tokenizer_config.json").read_text())
    template = "{% for m in messages %}{{ m['content'] }} {% endfor %}"
    (folder / "tiny" / "tokenizer_config.json").write_text(json.dumps(settings | {"chat_template": template}))
    return folder


@pytest.mark.drawn
def test_no_command_runs_a_file_of_the_current_folder(inputs: Path, tmp_path: Path) -> None:
    """These commands in one process, which starts as the console script does: in the folder, and without it among its paths."""
    here, ran, out = (tmp_path / name for name in ("here", "ran", "out"))
    for folder in (here, ran, out):
        folder.mkdir()
    write_canaries(here, ran)
    work = [[word.replace("IN/", f"{inputs}/").replace("OUT/", f"{out}/") for word in words] for words in WORK]
    (tmp_path / "work.json").write_text(json.dumps(work))
    (tmp_path / "driver.py").write_text(DRIVER)
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", SAFE_PATH)}
    environment["OMP_NUM_THREADS"] = "1"
    driver = [sys.executable, str(tmp_path / "driver.py"), str(tmp_path / "work.json")]
    done = subprocess.run(driver, cwd=here, env=environment, capture_output=True, text=True, check=False)
    results = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('[["')]
    assert len(results) == len(work), done.stderr[-2000:]
    assert not list(ran.iterdir())
    wrong = [result for result in results if result[1] != (130 if result[0][0] == "view" else 0)]
    assert not wrong, wrong
    assert "matplotlibrc" not in done.stderr
    assert all(path.stat().st_size > 5000 for path in out.rglob("*.png")), "pictures at 3 dots an inch"
    assert len(list(out.rglob("*.png"))) > 2


def test_every_start_of_a_process_is_protected() -> None:
    """Other ways to start a process would need the protection, too, and a place in this table."""
    files = [path for folder in ("composer", "blocks", "converters") for path in (ROOT / folder).rglob("*.py")]
    texts = {named(path): path.read_text(encoding="utf-8") for path in files if path.name != "subprocesses.py"}
    assert {name for name, text in texts.items() if STARTS.search(text)} == WAYS.keys()
    for name, way in WAYS.items():
        assert f"{way}(" in texts[name], name


def test_the_console_script_protects_all_that_libraries_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(SAFE_PATH, raising=False)
    monkeypatch.setattr(entry, "guard_streams", lambda: None)
    monkeypatch.setattr("composer.cli.main.main", lambda: None)
    entry.main()
    assert os.environ[SAFE_PATH] == "1"


def test_a_process_that_is_started_has_the_paths_of_this_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "random.py").write_text(CANARY.format(str(tmp_path / "ran")))
    monkeypatch.chdir(tmp_path)
    code = "import random, composer; print(composer.__file__)"
    done = subprocess.run([sys.executable, "-c", code], env=environment_of_child(), capture_output=True, text=True, check=True)
    assert done.stdout.strip() == composer.__file__
    assert not (tmp_path / "ran").exists()


def test_spawned_processes_import_nothing_from_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here, ran = tmp_path / "here", tmp_path / "ran"
    here.mkdir(), ran.mkdir()
    write_canaries(here, ran)
    monkeypatch.chdir(here)
    monkeypatch.delenv(SAFE_PATH, raising=False)
    with protected_children(), ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        assert pool.submit(len, "ab").result() == 2
    assert not list(ran.iterdir())
