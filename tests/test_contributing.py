"""The steps of CONTRIBUTING.md work in a copy: files, imports, names, `make docs`, tests and laws."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[1]
LAWS = ("tests/laws/test_definition.py", "tests/laws/test_split.py", "tests/laws/test_batch.py")
COPIED = ("blocks", "composer", "converters", "specs", "tests", "docs", "pages", "README.md", "pyproject.toml")


def ran(folder: Path, *command: str) -> str:
    """Return the output of a Python command in the copy. It must succeed."""
    # -P and a path of its own: the copy is what is imported, not the package that is installed.
    environment = {"PYTHONPATH": str(folder), "OMP_NUM_THREADS": "1", "PATH": "/usr/bin:/bin", "COMPOSER_EXAMPLES": "1"}
    done = subprocess.run([sys.executable, *command], cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the repository with the page's example: one file, and one import and name in its role."""
    folder, page = tmp_path_factory.mktemp("copy"), (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    ignored = shutil.ignore_patterns("*.pyc.*")  # what is compiled stays valid in a copy; what is being compiled goes away
    for name in COPIED:
        source = ROOT / name
        shutil.copytree(source, folder / name, ignore=ignored) if source.is_dir() else shutil.copy(source, folder / name)
    files = re.findall(r"This is `(blocks/\S+\.py)`, all of it:", page)
    roles = re.findall(r"In `(blocks/\S+\.py)` its import, and its name in the role `(\w+)`", page)
    score, score_line = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    for path, part, line, (module, role) in zip(files, (score,), (score_line,), roles, strict=True):
        assert not (folder / path).exists()
        (folder / path).write_text(part, encoding="utf-8")
        (name,) = re.findall(r"import (\w+)\n", line)
        text = (folder / module).read_text(encoding="utf-8")
        added = re.sub(rf"\n({role} = Role\(.*?)\)\n", rf"\n{line}\n\1, {name})\n", text, count=1, flags=re.DOTALL)
        assert added.count(name) == 2
        (folder / module).write_text(added, encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def outcome(copy: Path) -> dict[str, str]:
    """The results of one process of the copy after the steps of `make docs`: the part, a head with it, and the laws."""
    memory = "['window', {'kind': 'sparse', 'keep': 'value_norm'}, 'state']"
    spec = f"{{'compose': 1, 'name': 'kept', 'head': {{'feature_map': 'elu', 'memory': {memory}}}}}"
    sizes = "dict(hidden_size=24, layers=1, heads=4, key_heads=2, head_dim=8, rope_theta=100.0)"
    code = (
        "import runpy; runpy.run_path('pages/write.py', run_name='__main__'); "
        "import json; from composer.spec.loading import resolve_spec; from composer.cli.main import app; "
        "from typer.testing import CliRunner; from composer.spec.resolve import Dimensions; "
        "from composer.spec.code import code_of; from composer.spec.explain import explain_resolved; "
        "answer = lambda kind: CliRunner().invoke(app, ['parts', kind], catch_exceptions=False).stdout; "
        "said = {kind: answer(kind) for kind in ('value_norm',)}; "
        f"one = resolve_spec({spec}, Dimensions(**{sizes})); "
        "said['code'] = '\\n'.join(code_of(one, 'a source').heads[0].functions); "
        "said['bytes'] = str(explain_resolved(one).groups[0].state_bytes); "
        "open('said.json', 'w').write(json.dumps(said)); "
        f"import sys, pytest; sys.exit(pytest.main(['-vv', '-p', 'no:cacheprovider', *{LAWS}, '-k', 'value_norm']))"
    )
    laws = ran(copy, "-c", code)
    return json.loads((copy / "said.json").read_text(encoding="utf-8")) | {"laws": laws}


@pytest.mark.parametrize(("role", "kind", "equation"), [("score", "value_norm", "‖v‖")])
def test_the_new_part_is_listed_in_the_page_and_the_schema(
    copy: Path, outcome: dict[str, str], role: str, kind: str, equation: str
) -> None:
    assert f"| {role} | `{kind}` |" in (copy / "docs" / "parts.md").read_text(encoding="utf-8")
    assert kind in (copy / "specs" / "schema.json").read_text(encoding="utf-8")
    assert equation in outcome[kind]


def test_the_new_part_passes_the_laws(outcome: dict[str, str]) -> None:
    passed = [line for line in outcome["laws"].splitlines() if "PASSED" in line]
    for place in (*LAWS, "score: value_norm"):
        assert any(place in line for line in passed)


def test_the_head_is_explained_and_listed(outcome: dict[str, str]) -> None:
    assert '{"window": window, "sparse": sparse, "state": state}' in outcome["code"]
    assert int(outcome["bytes"]) > 0
