"""Without the package, loading by transformers ends in a message that names it. With it, its classes are used."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import composer
from converters.model_types import AUTO_MAP, STUB
from tests.composer.programs import printed_behind_libraries

ROOT = Path(__file__).parents[3]
TEACHER = ROOT / "examples" / "teacher"
HIDDEN = """
import importlib.abc, sys

class Missing(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name.partition(".")[0] in ("composer", "blocks", "converters"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Missing())
for name in [name for name in sys.modules if name.partition(".")[0] == "blocks"]:
    del sys.modules[name]
"""
LOADS = """
import json, os, sys, traceback
os.environ["HF_MODULES_CACHE"] = {modules!r}
sys.path.insert(0, {first!r})
try:
    from transformers import AutoModelForCausalLM
    model = AutoModelForCausalLM.from_pretrained({folder!r}, trust_remote_code={trusts})
except Exception:
    print(json.dumps({{"error": traceback.format_exc(), "module": ""}}))
else:
    print(json.dumps({{"error": "", "module": type(model).__module__}}))
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stub") / "model"
    composer.build_folder("lolcats", TEACHER, folder)
    return folder


def load(folder: Path, home: Path, *, hides: bool, trusts: bool, first: Path = ROOT) -> dict[str, str]:
    """Load the folder in another process, with or without this package. Return the module of the model's class, and the traceback.
    first: the folder that Python searches first.
    """
    code = LOADS.format(folder=str(folder), modules=str(home / "modules"), trusts=trusts, first=str(home if hides else first))
    return json.loads(printed_behind_libraries((HIDDEN if hides else "") + code, home).splitlines()[-1])


def test_without_the_package_the_error_names_it_and_the_export(built: Path, tmp_path: Path) -> None:
    ended = load(built, tmp_path, hides=True, trusts=True)
    last = ended["error"].strip().splitlines()[-1]
    assert last.startswith("ImportError: This model needs the package attention-composer: run `pip install .`")
    assert "`compose export`" in last


def test_another_package_called_composer_is_named(built: Path, tmp_path: Path) -> None:
    """MosaicML's package has the same import name."""
    (tmp_path / "composer").mkdir()
    (tmp_path / "composer" / "__init__.py").touch()
    ended = load(built, tmp_path, hides=False, trusts=True, first=tmp_path)
    last = ended["error"].strip().splitlines()[-1]
    assert last.startswith("ImportError: This model needs the package attention-composer")
    assert str(tmp_path / "composer") in last


def test_without_trust_transformers_names_the_argument_that_shows_it(built: Path, tmp_path: Path) -> None:
    ended = load(built, tmp_path, hides=True, trusts=False)
    assert "trust_remote_code=True" in ended["error"]
    assert "does not recognize this architecture" not in ended["error"]


def test_where_the_package_is_installed_the_file_imports_it(built: Path, tmp_path: Path) -> None:
    ended = load(built, tmp_path, hides=False, trusts=True)
    assert ended == {"error": "", "module": "composer.model.modeling"}


def test_the_file_is_part_of_the_build_and_of_what_transformers_saves(built: Path, tmp_path: Path) -> None:
    assert composer.verify(built).ok
    composer.load(built).save_pretrained(tmp_path / "saved")
    composer.build_folder("lola", built, tmp_path / "next")
    for folder in (built, tmp_path / "saved", tmp_path / "next"):
        assert (folder / STUB).is_file()
        assert json.loads((folder / "config.json").read_text(encoding="utf-8"))["auto_map"] == AUTO_MAP
    assert composer.verify(tmp_path / "saved").ok
