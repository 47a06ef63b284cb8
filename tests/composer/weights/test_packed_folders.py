"""A folder with quantised weights that transformers unpacks on a CPU is a source: its student has the unpacked weights."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, BitsAndBytesConfig
from transformers.quantizers.auto import AUTO_QUANTIZER_MAPPING

import composer
from composer.errors import ComposerError, SourceError
from composer.weights.record import read_record
from composer.weights.sources import CACHE, FOLDER, describe_model, open_model
from tests.checkpoints import logits
from tests.composer.hosts.families import small
from tests.packed import compressed, fp8, mxfp4, mxfp8

QWEN3 = {"hidden_size": 64, "intermediate_size": 64}
SIZES = {"hidden_size": 64, "intermediate_size": 64, "moe_intermediate_size": 32}
KINDS: dict[str, tuple[str, Callable[[Path], Path]]] = {
    "fp8": ("qwen3", fp8),
    "fp8 of a llama": ("llama", fp8),
    "fp8 of experts": ("qwen3_moe", fp8),
    "mxfp8": ("qwen3", mxfp8),
    "mxfp4": ("gpt_oss", mxfp4),
}


def packed(folder: Path, kind: str) -> tuple[Path, Path]:
    """A folder with quantised weights, and one with the same weights in float32."""
    family, quantise = KINDS[kind]
    sizes = {name: size for name, size in SIZES.items() if family == "qwen3_moe" or not name.startswith("moe")}
    small(family, **sizes).save_pretrained(folder)
    (folder / "tokenizer.json").write_text("{}")
    (folder / "generation_config.json").write_text(json.dumps({"temperature": 0.5, "eos_token_id": 2}))
    return folder, quantise(folder)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind.split()[0] in AUTO_QUANTIZER_MAPPING])
def test_students_equal_those_of_the_unpacked_weights(tmp_path: Path, kind: str) -> None:
    folder, plain = packed(tmp_path / "packed", kind)
    composer.build_folder("softmax", folder, tmp_path / "student", dtype="float32")
    composer.build_folder("softmax", plain, tmp_path / "wanted")
    assert torch.equal(logits(composer.load(tmp_path / "student")), logits(composer.load(tmp_path / "wanted")))
    assert composer.verify(tmp_path / "student").ok
    for name in ("tokenizer.json", "generation_config.json"):
        assert (tmp_path / "student" / name).read_bytes() == (folder / name).read_bytes()
    record = read_record(tmp_path / "student")
    assert record is not None
    assert record.source is not None
    assert record.source.unpacked is not None
    assert record.source.unpacked.quantisation == kind.split(maxsplit=1)[0]
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= record.source.unpacked.files.keys()


def test_bfloat16_is_the_default_dtype(tmp_path: Path) -> None:
    folder, plain = packed(tmp_path / "packed", "fp8")
    composer.build_folder("softmax", folder, tmp_path / "student")
    ours, wanted = composer.load(tmp_path / "student").state_dict(), load_file(plain / "model.safetensors")
    assert all(torch.equal(tensor, wanted[name].bfloat16()) for name, tensor in ours.items() if name in wanted)
    assert composer.explain("lolcats", folder).dtype == describe_model(folder).trunk.dtype == "bfloat16"


def test_a_config_is_explained_without_its_weights(tmp_path: Path) -> None:
    folder, plain = packed(tmp_path / "packed", "fp8")
    (folder / "model.safetensors").unlink()
    assert composer.explain("lolcats", folder, dtype="float32").state_bytes == composer.explain("lolcats", plain).state_bytes


@pytest.mark.parametrize("kind", ["gptq", "awq", "hqq"])
def test_unsupported_quantisations_are_refused_with_advice(tmp_path: Path, kind: str) -> None:
    folder, _ = packed(tmp_path / "packed", "fp8")
    edit(folder, quantization_config={"quant_method": kind})
    for reader in (open_model, describe_model):
        with pytest.raises(SourceError, match=rf"is quantised \({kind}\).*Build from the checkpoint that was quantised"):
            reader(folder)


def edit(folder: Path, **changes: Any) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | changes))


def without_scale(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    del tensors["model.layers.0.self_attn.q_proj.weight_scale_inv"]
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})


def with_nan(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    tensors["model.layers.0.self_attn.q_proj.weight_scale_inv"][0, 0] = torch.nan
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})


def truncated(folder: Path) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])


def missing(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    del tensors["model.norm.weight"]
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (with_nan, r"holds NaN or infinity .*q_proj.weight \(64\)"),
        (truncated, "is truncated"),
        (missing, r"lacks tensors of .*model\.norm\.weight"),
        (lambda folder: edit(folder, num_hidden_layers=9_000), "9,000 layers, and only"),
        (lambda folder: edit(folder, vocab_size=2**30), "vocab_size"),
        (lambda folder: edit(folder, intermediate_size=2**20), "has .* bytes of weights, and the model of its config.json"),
        (lambda folder: edit(folder, quantization_config="fp8"), "expected a mapping or null"),
        (lambda folder: edit(folder, quantization_config={"quant_method": "fp8", "weight_block_size": "x"}), "cannot unpack"),
        (lambda folder: edit(folder, auto_map={"AutoConfig": "evil.Config"}, model_type="evil"), "contains custom code"),
    ],
)
def test_a_damaged_folder_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: Callable[[Path], None], message: str
) -> None:
    monkeypatch.setenv(CACHE, str(tmp_path / "cache"))
    folder, _ = packed(tmp_path / "packed", "fp8")
    damage(folder)
    with pytest.raises(ComposerError, match=f"(?s){message}"):
        composer.build_folder("softmax", folder, tmp_path / "student")
    assert not (tmp_path / "student").exists()
    left = tmp_path / "cache" / FOLDER
    assert not left.exists() or not list(left.iterdir())


def test_weights_without_their_scale_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """transformers would load the stored numbers as weights, which are never the model's."""
    monkeypatch.setenv(CACHE, str(tmp_path / "cache"))
    folder, _ = packed(tmp_path / "packed", "fp8")
    without_scale(folder)
    with pytest.raises(ComposerError, match=r"lacks the scales of model\.layers\.0\.self_attn\.q_proj\.weight\. Fetch it again"):
        composer.build_folder("softmax", folder, tmp_path / "student")


def test_students_of_compressed_tensors_equal_students_of_plain_weights(tmp_path: Path) -> None:
    pytest.importorskip("compressed_tensors")
    small("qwen3", **QWEN3).save_pretrained(tmp_path / "packed")
    plain = compressed(tmp_path / "packed")
    composer.build_folder("softmax", tmp_path / "packed", tmp_path / "student", dtype="float32")
    composer.build_folder("softmax", plain, tmp_path / "wanted")
    assert torch.equal(logits(composer.load(tmp_path / "student")), logits(composer.load(tmp_path / "wanted")))


@torch.no_grad()
def test_a_student_of_bitsandbytes_weights_equals_its_source(tmp_path: Path) -> None:
    pytest.importorskip("bitsandbytes")
    small("qwen3", **QWEN3).save_pretrained(tmp_path / "source")
    packed = AutoModelForCausalLM.from_pretrained(
        tmp_path / "source", quantization_config=BitsAndBytesConfig(load_in_4bit=True), dtype=torch.float32
    )
    packed.save_pretrained(tmp_path / "packed")
    composer.build_folder("softmax", tmp_path / "packed", tmp_path / "student", dtype="float32")
    assert torch.equal(logits(composer.load(tmp_path / "student")), packed(torch.arange(3, 33)[None]).logits)
