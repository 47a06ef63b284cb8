"""Changes of the record, of files beside the weights, and added files that a loader reads are found."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig

import composer
from composer.building.rewrite import Adapter, Trained, write_trained
from composer.errors import BuildError
from composer.weights.plan import FRESH_FILE
from composer.weights.record import RECORD
from composer.weights.verify import verify
from tests.checkpoints import edit_config, edit_tensors
from tests.composer.weights.students import LAWCAT, SOFTMAX, build
from tests.composer.weights.test_verify import LINKED, built, flip


def change_record(out: Path, change: Callable[[dict[str, Any]], object]) -> None:
    record = json.loads((out / RECORD).read_text())
    change(record)
    (out / RECORD).write_text(json.dumps(record))


def failed(out: Path) -> set[tuple[str, str]]:
    return {(check.what, check.subject) for check in verify(out).failed}


@pytest.fixture
def adapted(source: Path, tmp_path: Path) -> Path:
    """A student with adapters and a log of its training."""
    build(source, tmp_path / "student", LAWCAT)
    (tmp_path / "log").write_text("a log")
    tensors = {f"base_model.model.model.layers.0.self_attn.q_proj.lora_{which}.weight": torch.ones(2, 32) for which in "AB"}
    adapter = Adapter({"peft_type": "LORA", "r": 2, "lora_alpha": 4, "target_modules": ["q_proj"]}, tensors)
    write_trained(tmp_path / "student", tmp_path / "adapted", Trained({}, adapter, (), {"log.jsonl": tmp_path / "log"}))
    assert verify(tmp_path / "adapted").ok
    assert not verify(tmp_path / "adapted").unchecked
    return tmp_path / "adapted"


class TestWhatStandsBeside:
    """Files that decide the model's output are those of the build, and later ones are named."""

    @pytest.mark.parametrize("file", ["tokenizer.json", "tokenizer_config.json", "generation_config.json"])
    @pytest.mark.parametrize("gone", [False, True], ids=["changed", "gone"])
    def test_changed_or_removed_tokenizers_and_settings_fail(self, source: Path, tmp_path: Path, file: str, gone: bool):
        out = built(source, tmp_path / "out")
        (out / file).unlink()
        if not gone:
            (out / file).write_text('{"version": "1.0", "max_new_tokens": 1}')
        assert failed(out) == {("contents", file)}

    @pytest.mark.parametrize("file", ["chat_template.jinja", "added_tokens.json", "spiece.model", "adapter_config.json"])
    def test_files_added_later_that_loaders_read_fail(self, source: Path, tmp_path: Path, file: str):
        out = built(source, tmp_path / "out")
        (out / file).write_text("{}")
        assert failed(out) == {("contents", file)}

    def test_tokenizers_added_to_a_model_without_one_are_unchecked(self, source: Path, tmp_path: Path):
        for file in ("tokenizer.json", "tokenizer_config.json"):
            (source / file).unlink()
        out = built(source, tmp_path / "out")
        (out / "tokenizer.json").write_text("{}")
        report = verify(out)
        assert report.ok
        assert [check.subject for check in report.unchecked] == ["tokenizer.json"]

    def test_files_that_are_never_read_are_unchecked(self, source: Path, tmp_path: Path):
        out = built(source, tmp_path / "out")
        (out / "README.md").write_text("mine")
        (out / "notes").mkdir()
        (out / "notes" / "more.safetensors").write_text("mine")
        (out / "old.bin").write_text("mine")
        report = verify(out)
        assert report.ok
        assert [check.subject for check in report.unchecked] == ["README.md", "the rest"]
        assert "notes/more.safetensors, old.bin" in report.unchecked[1].detail

    def test_changed_or_removed_adapter_configs_fail(self, adapted: Path, tmp_path: Path):
        config = adapted / "adapter" / "adapter_config.json"
        config.write_text(config.read_text().replace('"lora_alpha": 4', '"lora_alpha": 400'))
        assert failed(adapted) == {("contents", "adapter/adapter_config.json")}
        config.unlink()
        assert failed(adapted) == {("adapters", "adapter"), ("contents", "adapter/adapter_config.json")}

    def test_adapters_that_no_loader_reads_fail(self, adapted: Path):
        """The record has the hash of their config, but no loader reads them."""
        config = adapted / "adapter" / "adapter_config.json"
        config.write_text(config.read_text().replace('"q_proj"', '"gate_proj"'))
        digest = hashlib.sha256(config.read_bytes()).hexdigest()
        change_record(adapted, lambda record: record["documents"].update({"adapter/adapter_config.json": digest}))
        assert failed(adapted) == {("adapters", "adapter")}

    @pytest.mark.parametrize("value", [..., None, "training"])
    def test_adapters_that_contradict_the_config_fail(self, adapted: Path, value: object):
        edit_config(adapted, adapter=value)
        assert failed(adapted) == {("config", "config.json")}

    def test_adapters_with_changed_weights_fail(self, adapted: Path):
        flip(adapted / "adapter" / "adapter_model.safetensors", keep_time=True)
        assert failed(adapted) == {("contents", "adapter/adapter_model.safetensors")}

    def test_the_log_is_not_part_of_the_model(self, adapted: Path):
        (adapted / "training" / "log.jsonl").write_text("another")
        report = verify(adapted)
        assert report.ok
        assert [check.subject for check in report.unchecked] == ["training/log.jsonl"]


class TestRecord:
    """A record with a missing or changed field does not pass."""

    @pytest.mark.parametrize(
        "change",
        [
            lambda spec: spec["head"]["feature_map"].update(share=None),
            lambda spec: spec["head"]["conv"].update(kernel=3),
            lambda spec: spec.update(name="another"),
            lambda spec: spec.update(paper="arXiv:0000.00000"),
            lambda spec: spec.update(recipe={"transfer": {"lr": 1.0}}),
            lambda spec: spec.update(extends="lolcats"),
            lambda spec: spec.clear(),
        ],
    )
    def test_changed_resolved_specs_fail(self, source: Path, tmp_path: Path, change: Callable[[dict[str, Any]], object]):
        out = built(source, tmp_path / "out")
        change_record(out, lambda record: change(record["spec"]))
        assert failed(out) == {("spec", RECORD)}

    def test_weight_files_missing_in_the_record_fail(self, source: Path, tmp_path: Path):
        out = built(source, tmp_path / "out")
        edit_tensors(out / FRESH_FILE, lambda tensors: [tensor.fill_(torch.nan) for tensor in tensors.values()])
        change_record(out, lambda record: record.update(files={}))
        assert {("contents", FRESH_FILE), ("contents", LINKED)} <= failed(out)

    def test_documents_missing_in_the_record_fail(self, source: Path, tmp_path: Path):
        out = built(source, tmp_path / "out")
        change_record(out, lambda record: record["documents"].pop("tokenizer.json"))
        assert failed(out) == {("contents", "tokenizer.json")}

    def test_files_outside_the_folder_are_not_read(self, source: Path, tmp_path: Path):
        out = built(source, tmp_path / "out")
        (tmp_path / "secret").write_text("")
        for name in ("../secret", str(tmp_path / "secret"), "a/../../secret", "a\\secret"):
            change_record(out, lambda record, name=name: record["documents"].update({name: "0" * 64}))
            with pytest.raises(BuildError, match=rf"no file of a folder can be called {re.escape(repr(name)[:20])}"):
                verify(out)
            change_record(out, lambda record, name=name: record["documents"].pop(name))
        change_record(out, lambda record: record["files"].update({"../secret.safetensors": record["files"][LINKED]}))
        with pytest.raises(BuildError, match=r"no file of a folder can be called '\.\./secret\.safetensors'"):
            verify(out)

    def test_verify_returns_the_hash_of_the_record(self, source: Path, tmp_path: Path):
        out = built(source, tmp_path / "out")
        assert verify(out).record_sha256 == hashlib.sha256((out / RECORD).read_bytes()).hexdigest()


def test_added_config_keys_fail(source: Path, tmp_path: Path):
    out = built(source, tmp_path / "out")
    edit_config(out, attn_implementation="somebody/kernels")
    assert failed(out) == {("config", "config.json")}


def test_configs_saved_again_by_transformers_pass(source: Path, tmp_path: Path):
    out = built(source, tmp_path / "out")
    AutoConfig.from_pretrained(out).save_pretrained(out)
    assert verify(out).ok


def test_changed_label_names_fail(tmp_path: Path):
    trunk = {"width": 32, "layers": 1, "heads": 2, "vocabulary": 16, "labels": 2}
    composer.build_folder(SOFTMAX | {"trunk": trunk, "direction": "bidirectional"}, out=tmp_path / "out", fresh=True)
    assert verify(tmp_path / "out").ok
    edit_config(tmp_path / "out", id2label={"0": "LABEL_1", "1": "LABEL_0"})
    assert failed(tmp_path / "out") == {("config", "config.json")}
