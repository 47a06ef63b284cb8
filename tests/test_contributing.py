"""The walk-through of CONTRIBUTING.md, followed to the letter in a copy: a file, an import, a name, `make docs`; laws hold."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
COPIED = ("blocks", "composer", "converters", "specs", "tests", "docs", "README.md", "pyproject.toml")


def ran(folder: Path, *command: str) -> str:
    """What a command of Python's says in the copy, which it must do without an error."""
    # -P and a path of its own: the copy is what is imported, not the package that is installed.
    environment = {"PYTHONPATH": str(folder), "OMP_NUM_THREADS": "1", "PATH": "/usr/bin:/bin", "COMPOSER_EXAMPLES": "1"}
    done = subprocess.run([sys.executable, *command], cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_score_is_added_as_the_page_says(tmp_path: Path) -> None:
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    (path,) = re.findall(r"This is `(blocks/\S+\.py)`, all of it:", page)
    (role,) = re.findall(r"In `(blocks/\S+\.py)` its import, and its name in the union `ScoreConfig`", page)
    part, line = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    for name in COPIED:
        source = ROOT / name
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(source, tmp_path / name, ignore=ignored) if source.is_dir() else shutil.copy(source, tmp_path / name)
    (tmp_path / path).write_text(part, encoding="utf-8")
    text = (tmp_path / role).read_text(encoding="utf-8")
    added = text.replace("\nScoreConfig", f"{line}\nScoreConfig", 1).replace("| Random,", "| Random | ValueNorm,", 1)
    assert added.count("ValueNorm") == 2
    (tmp_path / role).write_text(added, encoding="utf-8")

    ran(tmp_path, "docs/write.py")
    assert "| score | `value_norm` |" in (tmp_path / "README.md").read_text(encoding="utf-8")
    assert "value_norm" in (tmp_path / "specs" / "schema.json").read_text(encoding="utf-8")
    assert "‖v‖" in ran(tmp_path, "-c", "from composer.cli.main import app; app(['parts', 'value_norm'], standalone_mode=False)")
    laws = ("tests/laws/test_definition.py", "tests/laws/test_split.py", "tests/laws/test_batch.py")
    ran(tmp_path, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--no-header", *laws, "-k", "value_norm")  # 5: nothing was run
