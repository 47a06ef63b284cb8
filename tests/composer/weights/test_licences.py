"""The licence of a source follows its weights through every command that writes them."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

import composer
from composer.publishing.contents import contents_of
from tests.composer.cli.conftest import student, teacher
from tests.composer.exporting.models import uncompared
from tests.gguf_files import gguf_model, write_gguf
from tests.packed import fp8

pytestmark = pytest.mark.long

__all__ = ["student", "teacher"]

TERMS = {"LICENSE": "Terms of the source.\n", "NOTICE": "Whose weights these are.\n", "use_policy.md": "What they are for.\n"}
FIELDS = {"license": "llama3.2", "license_name": "theirs", "license_link": "LICENSE"}
CARD = f"---\n{yaml.safe_dump({'tags': ['x'], **FIELDS}, sort_keys=False)}---\n# The source\n"
QUICK = [f"recipe.{stage}.{rest}" for stage in ("transfer", "finetune") for rest in ("epochs=null", "steps=1")]
BUILT = ("built", "distilled", "merged", "student", "native-student", "packed")
SAVED = ("saved", "saved-from-memory")
"""Folders that transformers writes, without a card."""
EXPORTED = ("exported", "native")


def add_licence(folder: Path) -> Path:
    for name, text in {**TERMS, "README.md": CARD}.items():
        (folder / name).write_text(text)
    return folder


def fields_of(card: str) -> dict[str, Any]:
    return {key: value for key, value in yaml.safe_load(card.split("---\n")[1]).items() if key.startswith("license")}


@pytest.fixture(scope="module")
def written(teacher: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the result of every command that writes weights, of a source with a licence."""
    root = tmp_path_factory.mktemp("licences")
    source = add_licence(shutil.copytree(teacher, root / "source"))
    (root / "text.txt").write_text("once upon a time there was a cat and it slept\n" * 40)
    composer.build_folder("lolcats", source, root / "built")
    composer.distill(root / "built", str(root / "text.txt"), root / "distilled", overrides=[*QUICK, "recipe.sequence=8"])
    composer.merge(root / "distilled", root / "merged")
    composer.build_folder("linear", root / "merged", root / "student")
    composer.load(root / "student").save_pretrained(root / "saved")
    composer.build("lolcats", source).save_pretrained(root / "saved-from-memory")
    composer.build_folder("softmax", source, root / "softmax")
    with uncompared():
        composer.export(root / "student", root / "exported")
        composer.export(root / "softmax", root / "native", native=True)
    composer.build_folder("lolcats", root / "native", root / "native-student")
    quantised = shutil.copytree(source, root / "quantised")
    fp8(quantised)
    composer.build_folder("lolcats", quantised, root / "packed")
    return root


@pytest.mark.parametrize("name", [*BUILT, *SAVED, *EXPORTED])
def test_licence_files_and_fields_are_copied(written: Path, name: str) -> None:
    folder = written / name
    pushed = contents_of(folder, "owner/mine").files
    for file, text in TERMS.items():
        assert (folder / file).read_text() == text
        assert file in pushed
    card = pushed["README.md"]
    assert isinstance(card, bytes)
    for text in [card.decode(), *([] if name in SAVED else [(folder / "README.md").read_text()])]:
        assert fields_of(text) == FIELDS
        assert "have its licence: `llama3.2`, `theirs`, `LICENSE`. The terms are in `LICENSE`, `NOTICE`, `use_policy.md`." in text


def test_the_licence_of_an_export_s_code_is_beside_that_of_its_weights(written: Path) -> None:
    (file,) = (written / "exported").glob("modeling_*.py")
    assert file.read_text().startswith("# SPDX-License-Identifier: Apache-2.0\n")
    assert "Apache License" in (written / "exported" / f"{file.stem}.LICENSE").read_text()
    assert f"`{file.name}` is written code, and has the licence Apache-2.0" in (written / "exported" / "README.md").read_text()
    assert "Apache" not in (written / "native" / "README.md").read_text()


def test_a_student_follows_the_card_of_its_source_and_else_its_record(written: Path, tmp_path: Path) -> None:
    edited = shutil.copytree(written / "built", tmp_path / "edited")
    for front, licence in (("license: mit", {"license": "mit"}), ("tags: [mine]", FIELDS)):
        (edited / "README.md").write_text(f"---\n{front}\n---\n")
        composer.build_folder("lola", edited, tmp_path / "student", force=True)
        assert fields_of((tmp_path / "student" / "README.md").read_text()) == licence


@pytest.mark.usefixtures("without_comparison")
def test_a_card_claims_no_licence_where_the_source_states_none(student: Path, tmp_path: Path) -> None:
    composer.export(student, tmp_path / "exported")
    for folder in (student, tmp_path / "exported"):
        card = (folder / "README.md").read_text()
        assert fields_of(card) == {}
        assert "The source of the weights states no licence" in card
        assert not (folder / "LICENSE").exists()


def test_the_licence_of_a_gguf_file_is_in_its_metadata_and_beside_it(tmp_path: Path) -> None:
    """Files beside it count only where a card there states a licence: a download may lie beside anything."""
    stated, beside = tmp_path / "stated", tmp_path / "beside"
    stated.mkdir()
    beside.mkdir()
    file = write_gguf(stated / "model.gguf", gguf_model("llama"), metadata={"general.license": "apache-2.0"})
    (stated / "LICENSE").write_text("Terms of something else.\n")
    write_gguf(add_licence(beside) / "model.gguf", gguf_model("llama"))
    composer.build_folder("softmax", file, tmp_path / "of-metadata")
    composer.build_folder("softmax", beside / "model.gguf", tmp_path / "of-card")
    assert fields_of((tmp_path / "of-metadata" / "README.md").read_text()) == {"license": "apache-2.0"}
    assert not (tmp_path / "of-metadata" / "LICENSE").exists()
    assert fields_of((tmp_path / "of-card" / "README.md").read_text()) == FIELDS
    assert (tmp_path / "of-card" / "NOTICE").read_text() == TERMS["NOTICE"]
