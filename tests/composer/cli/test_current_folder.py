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
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any

import pytest

import composer
from composer.cli import entry
from composer.cli.main import COMMANDS
from composer.system.subprocesses import SAFE_PATH, environment_of_child
from tests.composer.ablation.variants import write_spec
from tests.composer.training.runs import RECIPE, SPEC, make_student, write_texts
from tests.test_house import ROOT, named

pytestmark = pytest.mark.long

FRESH = {"width": 16, "layers": 1, "heads": 2, "vocabulary": 64}
STEP = ("--set", "recipe.transfer.steps=1", "--set", "recipe.finetune.steps=1")
SCORED = ("--tasks", "mqar,pairs=2", "--lengths", "12", "--samples", "2")
TEXT = "once upon a time there was a cat"
SHIPPED = str(ROOT / "examples" / "teacher")
JUDGED = (SHIPPED, "--data", "stories,samples=20", "--share", "0.2", "--rows", "2", "--tasks", "passkey")
WORK: tuple[tuple[str, ...], ...] = (
    ("new", "OUT/mine.yaml"),
    ("check", "lolcats"),
    ("show", "lolcats", "--from", "IN/teacher", "--code"),
    ("diff", "lolcats", "lawcat", "--from", "IN/teacher"),
    ("draw", "lolcats", "-o", "OUT/a.svg"),
    ("parts",),
    ("tasks",),
    ("schema",),
    ("explain", "lolcats", "--from", "IN/teacher"),
    ("build", "lolcats", "--from", "IN/teacher", "-o", "OUT/built"),
    ("lock", "lolcats", "--from", "IN/teacher", "-o", "OUT/a.lock.yaml"),
    ("build", "OUT/a.lock.yaml", "-o", "OUT/locked"),
    ("verify", "OUT/built"),
    ("push", "OUT/built", "owner/name", "--dry-run"),
    ("export", "OUT/built", "-o", "OUT/exported"),
    ("calibrate", "IN/tiny", "--data", "IN/texts.jsonl", "--share", "0.2", "-o", "OUT/calibrated"),
    ("distill", "IN/tiny", "--data", "IN/texts.jsonl", "--share", "0.2", *STEP, "-o", "OUT/distilled"),
    ("merge", "OUT/distilled", "-o", "OUT/merged"),
    ("train", "IN/fresh", "--data", "IN/texts.jsonl", "--share", "0.2", "-o", "OUT/trained"),
    ("logits", "IN/teacher", "--data", "IN/texts.jsonl", "--sequence", "16", "-o", "OUT/logits"),
    ("eval", "IN/tiny", *SCORED, "-o", "OUT/scores"),
    ("bench", "IN/tiny", "--prefill", "8", "--repeats", "1", "--steps", "1", "--memory", "-o", "OUT/bench"),
    ("inspect", "IN/tiny", "--text", "IN/text.txt", "-o", "OUT/report"),
    ("select", "IN/tiny.yaml", "--from", "IN/teacher", "--data", "IN/texts.jsonl", "--keep", "1", *STEP, "-o", "OUT/selected"),
    ("select", "streaming", "--from", *JUDGED, "--heads", "--keep", "1", "--steps", "1", "-o", "OUT/gates"),
    ("read", "IN/tiny", "--text", "IN/text.txt", "-o", "OUT/state"),
    ("build", "softmax", "--from", "IN/teacher", "-o", "OUT/full"),
    ("read", "OUT/full", "--text", "IN/text.txt", "-o", "OUT/full.state"),
    ("join", "OUT/full", "OUT/full.state", "OUT/full.state", "--approximate", "-o", "OUT/joined.state"),
    ("generate", "IN/tiny", "--prompt", TEXT, "--max-new-tokens", "2", "--chat"),
    ("sample", SHIPPED, "--texts", "1", "--length", "4", "-o", "OUT/samples"),
    ("chat", "IN/tiny", "--max-new-tokens", "2"),
    ("serve", "IN/tiny", "--port", "0"),
    ("view", "--no-browser"),
    ("ablate", "IN/tiny.yaml", "--from", "IN/teacher", *SCORED, "--jobs", "2", "-o", "OUT/ablation"),
)
"""Each command with the least work that it does. IN and OUT are folders."""
SERVERS = {"serve", "view"}
"""They end by Ctrl-C."""
DRIVER = """
import json, sys, time
from typer.testing import CliRunner
from composer.cli.main import app
from composer.commands.serve import Server
from composer.commands.view import Served

def wait(server):
    raise KeyboardInterrupt

Server.wait = Served.wait = wait
if __name__ == "__main__":  # processes that it starts import it
    for words in json.load(open(sys.argv[1])):
        began = time.process_time()
        result = CliRunner().invoke(app, words, input="hello\\n", prog_name="compose")
        seconds = time.process_time() - began
        print(json.dumps([words, result.exit_code, result.output[-1000:], repr(result.exception), seconds]), flush=True)
"""
CANARY = "open({!r}, 'w').close()\nraise ImportError('a file of the current folder has run')\n"
WAYS = {
    "composer/ablation/runner.py": "protected_children",
    "composer/benching/memory.py": "environment_of_child",
    "composer/exporting/gguf/folder.py": "environment_of_child",
    "composer/exporting/plain.py": "environment_of_child",
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
    write_texts(folder / "texts.jsonl", 24)
    (folder / "text.txt").write_text(TEXT)
    (folder / "teacher").symlink_to(teacher)
    make_student(folder / "tiny", teacher, SPEC | {"recipe": RECIPE})
    settings = json.loads((folder / "tiny" / "tokenizer_config.json").read_text())
    template = "{% for m in messages %}{{ m['content'] }} {% endfor %}"
    (folder / "tiny" / "tokenizer_config.json").write_text(json.dumps(settings | {"chat_template": template}))
    write_spec(folder / "tiny.yaml")
    train = {"train": {"lr": 0.01, "steps": 1}, "sequence": 16}
    fresh: Any = SPEC | {"trunk": FRESH, "recipe": train}
    make_student(folder / "fresh", None, fresh, fresh=True, tokenizer=str(teacher))
    return folder


@pytest.mark.drawn
def test_no_command_runs_a_file_of_the_current_folder(inputs: Path, tmp_path: Path) -> None:
    """All commands in one process, which starts as the console script does: in the folder, and without it among its paths."""
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
    wrong = [result for result in results if result[1] != (130 if result[0][0] in SERVERS else 0)]
    assert not wrong, wrong
    assert "matplotlibrc" not in done.stderr
    assert all(path.stat().st_size > 5000 for path in out.rglob("*.png")), "pictures at 3 dots an inch"
    assert len(list(out.rglob("*.png"))) > 3


def test_every_command_has_its_work() -> None:
    assert set(COMMANDS) == {words[0] for words in WORK}


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
