"""Models are identified by label and contents, include their adapters, and are rejected if they cannot be evaluated."""

from __future__ import annotations

import hashlib
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import composer
from composer.errors import EvaluationError, SourceError
from composer.evaluation.lengths import open_subjects
from composer.weights import sources
from composer.weights.opened import labels_of
from composer.weights.sources import open_model
from tests.composer.evaluation.conftest import TEACHER

SOURCE = open_model(TEACHER)


def named(*folders: str, hub: tuple[str, ...] = ()) -> list[str]:
    here = [replace(SOURCE, folder=Path(folder), repo_id=None) for folder in folders]
    return labels_of([*here, *(replace(SOURCE, repo_id=name) for name in hub)])


def test_labels_are_the_shortest_distinct_ends_of_paths() -> None:
    assert named("/a/lawcat", "/a/lola") == ["lawcat", "lola"]
    assert named("/a/lawcat", "/b/lawcat", "/b/lola") == ["a/lawcat", "b/lawcat", "lola"]
    assert named("/x/a/l", "/y/a/l", "/y/b/l") == ["x/a/l", "y/a/l", "b/l"]
    assert named("/a/l", "/a/l", "/a/l") == ["l", "l (2)", "l (3)"]
    assert named("/a/model", hub=("owner/model", "owner/other")) == ["a/model", "owner/model", "owner/other"]


@given(st.lists(st.lists(st.sampled_from("abc"), min_size=1, max_size=4), min_size=1, max_size=5))
def test_labels_are_distinct(paths: list[list[str]]) -> None:
    labels = named(*("/" + "/".join(path) for path in paths))
    assert len(set(labels)) == len(labels)


def test_facts_equal_those_of_the_files(folders: dict[str, Path]) -> None:
    (teacher, lawcat) = (subject.facts(None) for subject in open_subjects([TEACHER, folders["lawcat"]]))
    for facts, folder in ((teacher, TEACHER), (lawcat, folders["lawcat"])):
        assert facts.weights == {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.glob("*.safetensors")}
        assert facts.config_sha256 == hashlib.sha256((folder / "config.json").read_bytes()).hexdigest()
    assert (teacher.family, teacher.spec_hash, teacher.dtype) == ("llama", None, "float32")
    assert lawcat.spec_hash == json.loads((folders["lawcat"] / "config.json").read_text())["spec_hash"]
    assert teacher.tokenizer_sha256 == lawcat.tokenizer_sha256
    assert open_subjects([TEACHER])[0].facts("bfloat16").dtype == "bfloat16"


def test_models_may_have_custom_labels() -> None:
    (subject,) = open_subjects({"mine": TEACHER})
    assert (subject.label, subject.facts(None).label) == ("mine", "mine")


def test_sources_are_loaded_by_transformers(plain: Any) -> None:
    model = open_subjects([TEACHER])[0].load("float64", "cpu")
    assert type(model) is type(plain)
    assert not model.training
    assert (model.dtype, any(parameter.requires_grad for parameter in model.parameters())) == (torch.float64, False)


def test_adapters_are_applied(folders: dict[str, Path], tmp_path: Path) -> None:
    from peft import LoraConfig

    folder = shutil.copytree(folders["softmax"], tmp_path / "adapted")
    model: Any = composer.load(folder)
    model.add_adapter(LoraConfig(r=2, target_modules=["q_proj"], init_lora_weights=False))
    model.save_pretrained(tmp_path / "saved")
    (folder / "adapter").mkdir()
    for path in (tmp_path / "saved").glob("adapter_*"):
        shutil.copy(path, folder / "adapter")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "adapter": "adapter"}))

    (subject,) = open_subjects([folder])
    ids = torch.arange(4, 40)[None]
    with torch.no_grad():
        ours, adapted, bare = (
            loaded(ids).logits for loaded in (subject.load(None, "cpu"), model, composer.load(folders["softmax"]))
        )
    torch.testing.assert_close(ours, adapted)
    assert (ours - bare).abs().max() > 0.01
    assert "adapter/adapter_model.safetensors" in subject.facts(None).weights


def test_revisions_of_the_hub_are_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    revisions = []

    def fetch(repo_id: str, revision: str | None = None) -> tuple[Path, None]:
        revisions.append((repo_id, revision))
        return SOURCE.folder, None

    monkeypatch.setattr(sources, "fetch", fetch)
    first, second = open_subjects(["owner/model@v2", "owner/model"])
    assert (first.source.revision, second.source.revision) == ("v2", None)
    assert revisions == [("owner/model", "v2"), ("owner/model", None)]


def test_invalid_models_are_refused(folders: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(EvaluationError, match="name at least one"):
        open_subjects([])
    with pytest.raises(SourceError):
        open_subjects([tmp_path / "nowhere"])
    bare = shutil.copytree(TEACHER, tmp_path / "bare", ignore=shutil.ignore_patterns("tokenizer*"))
    with pytest.raises(EvaluationError, match="bare has no tokenizer, so it can read no task"):
        open_subjects([TEACHER, bare])
    (bare / "tokenizer.json").write_text("{}")
    with pytest.raises(EvaluationError, match="bare has no tokenizer that transformers can read"):
        open_subjects([bare])
    composer.build_folder("latte-bidirectional", TEACHER, tmp_path / "both")
    with pytest.raises(EvaluationError, match="both is bidirectional: "):
        open_subjects([tmp_path / "both"])
    trunk = {"width": 32, "layers": 2, "heads": 4, "vocabulary": 507, "labels": 2}
    spec = {"compose": 1, "name": "judge", "extends": "lawcat", "trunk": trunk}
    (tmp_path / "judge.yaml").write_text(json.dumps(spec))
    composer.build_folder(tmp_path / "judge.yaml", out=tmp_path / "judge", fresh=True, tokenizer=TEACHER)
    with pytest.raises(EvaluationError, match="judge is a classifier"):
        open_subjects([tmp_path / "judge"])


def test_models_without_memory_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory.")

    (subject,) = open_subjects([TEACHER])
    monkeypatch.setattr(torch.nn.Module, "to", full)
    with pytest.raises(EvaluationError, match="does not fit into the memory of cpu"):
        subject.load(None, "cpu")
