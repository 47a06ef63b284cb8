"""`--text-only` builds from the text decoder of a model that reads images. It has the logits of the whole model on text."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import composer
from composer.errors import BuildError, ComposerError, SourceError
from composer.training.teacher import open_teacher
from composer.weights.record import read_record
from composer.weights.verify import verify
from converters.hosts import WHOLE
from tests.checkpoints import edit_config
from tests.composer.hosts.families import small
from tests.composer.hosts.multimodal import MULTIMODAL, multimodal

DOCS = Path(__file__).parents[3] / "docs" / "sources.md"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache for this test."""
    monkeypatch.setenv("COMPOSER_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.mark.parametrize("family", MULTIMODAL)
@torch.no_grad()
def test_text_logits_equal_those_of_the_whole_model(family: str, tmp_path: Path) -> None:
    source = multimodal(family)
    source.save_pretrained(tmp_path / "source")
    ids = torch.randint(3, 90, (2, 14), generator=torch.Generator().manual_seed(1))
    if family not in WHOLE:
        with pytest.raises(
            SourceError, match=f"family {family} cannot be a source: it reads images.* `text_only=True` uses its text decoder"
        ):
            composer.build_folder("softmax", tmp_path / "source", tmp_path / "whole")
    composer.build_folder("softmax", tmp_path / "source", tmp_path / "student", text_only=True)
    student = composer.load(tmp_path / "student")
    torch.testing.assert_close(student(ids).logits, source(input_ids=ids, use_cache=False).logits, rtol=0, atol=2e-5)
    assert verify(tmp_path / "student").ok
    assert student.config.model_type.removeprefix("composed_") != family


def test_text_decoders_are_checked_and_explained(tmp_path: Path) -> None:
    multimodal("gemma3").save_pretrained(tmp_path / "source")
    composer.build_folder("lolcats", tmp_path / "source", tmp_path / "student", text_only=True)
    record = read_record(tmp_path / "student")
    assert record is not None
    assert composer.explain("lolcats", tmp_path / "source", text_only=True).hash == record.spec_hash
    (check,) = composer.check("lolcats", tmp_path / "source", text_only=True).checks
    assert check.hash == record.spec_hash
    assert composer.show("lolcats", tmp_path / "source", text_only=True).hash == record.spec_hash
    assert composer.diff("lolcats", "lolcats", tmp_path / "source", text_only=True).hashes == (record.spec_hash,) * 2
    assert "<svg" in composer.draw("lolcats", tmp_path / "source", text_only=True).svg
    assert composer.code("lolcats", tmp_path / "source", text_only=True).heads
    for function in (composer.explain, composer.check, composer.show, composer.draw, composer.code):
        with pytest.raises(ComposerError, match="text_only=True` is for a model with a source"):
            function("lolcats", text_only=True)


def test_the_docs_list_the_text_decoders() -> None:
    listed = DOCS.read_text(encoding="utf-8").partition("With `--text-only`, the text decoders")[2].partition("\n#")[0]
    assert re.findall(r"`([a-z0-9_]+)`", listed) == list(MULTIMODAL)


def test_both_naming_schemes_are_read(tmp_path: Path) -> None:
    """Transformers saves Gemma 3 with the names of the first checkpoints. Others publish it with the names of its modules."""
    multimodal("gemma3").save_pretrained(tmp_path / "source")
    path = tmp_path / "source" / "model.safetensors"
    tensors = load_file(path)
    renamed = {name.replace("language_model.model.", "model.language_model."): tensor for name, tensor in tensors.items()}
    assert renamed.keys() != tensors.keys()
    save_file(renamed, path, {"format": "pt"})
    composer.build_folder("softmax", tmp_path / "source", tmp_path / "student", text_only=True)
    assert verify(tmp_path / "student").ok


def test_teachers_are_extracted_again_if_the_cache_is_missing(tmp_path: Path, cache: Path) -> None:
    multimodal("gemma3").save_pretrained(tmp_path / "source")
    composer.build_folder("lolcats", tmp_path / "source", tmp_path / "student", text_only=True)
    record = read_record(tmp_path / "student")
    assert record is not None
    shutil.rmtree(cache)
    assert open_teacher(record, None).source.family.model_type == "gemma3_text"


@torch.no_grad()
def test_text_decoders_are_built_in_memory(tmp_path: Path) -> None:
    source = multimodal("llava")
    source.save_pretrained(tmp_path / "source")
    ids = torch.randint(3, 90, (1, 9), generator=torch.Generator().manual_seed(1))
    student = composer.build("softmax", tmp_path / "source", text_only=True)
    torch.testing.assert_close(student(ids).logits, source(input_ids=ids, use_cache=False).logits, rtol=0, atol=2e-5)
    with pytest.raises(BuildError, match="is for a source in a folder"):
        composer.build("softmax", source, text_only=True)


def test_invalid_uses_of_text_only_are_refused(tmp_path: Path) -> None:
    small("qwen3").save_pretrained(tmp_path / "text")
    with pytest.raises(SourceError, match="no part beside a text decoder"):
        composer.build_folder("softmax", tmp_path / "text", tmp_path / "out", text_only=True)
    with pytest.raises(BuildError, match="is for a model with a source"):
        composer.build_folder("latte-lm", fresh=True, out=tmp_path / "out", text_only=True)
    multimodal("gemma3").save_pretrained(tmp_path / "source")
    edit_config(tmp_path / "source", quantization_config={"quant_method": "gptq"})
    with pytest.raises(SourceError, match="are quantised"):
        composer.build_folder("softmax", tmp_path / "source", tmp_path / "out", text_only=True)
    assert not (tmp_path / "out").exists()
