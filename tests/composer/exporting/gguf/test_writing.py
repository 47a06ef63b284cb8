"""A GGUF file has the student's numbers under llama.cpp's names. ``tests/engines`` runs it under llama.cpp."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from gguf import GGUFReader, dequantize
from transformers import AutoConfig, AutoModelForCausalLM

import composer
from composer.errors import ComposerError, ExportError
from composer.exporting.gguf.types import TYPES
from composer.exporting.gguf.writing import Gguf, gguf_of, write_gguf
from composer.exporting.native import native_of
from tests.composer.exporting.gguf.tokenizers import bytes_tokenizer, write_tokenizer
from tests.composer.exporting.models import randomised

TEACHER = Path(__file__).parents[4] / "examples" / "teacher"
VOCABULARY = 507
EPSILON, KEPT_EPSILON, NO_BIAS = "head.output.epsilon=1e-6", "heads.kept.qk_norm.epsilon=1e-6", "head.output.bias=false"
SMALL = {
    "vocab_size": 320, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "head_dim": 8, "eos_token_id": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 256, "pad_token_id": 0, "bos_token_id": 1,
}  # fmt: skip
LLAMA_3 = {
    "rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}  # fmt: skip


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tokenizer(bytes_tokenizer(300), tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture(scope="module")
def student(tokenizer: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a Qwen3.5 with random heads."""
    folder = tmp_path_factory.mktemp("built") / "model"
    randomised(composer.build("native/qwen3_5", TEACHER, overrides=[EPSILON, KEPT_EPSILON])).save_pretrained(folder)
    shutil.copytree(tokenizer, folder, dirs_exist_ok=True)
    return folder


@pytest.fixture(autouse=True)
def without_llama_cpp(monkeypatch: pytest.MonkeyPatch) -> None:
    """These tests are the same where llama-cpp-python is installed."""
    monkeypatch.setattr("composer.exporting.gguf.folder.find_spec", lambda _: None)


def written(model: Any, tokenizer: Path, file: Path, kind: str = "f32", target: str | None = None) -> tuple[Gguf, GGUFReader]:
    """Return what is written of a model, and what is read back."""
    own = gguf_of(native_of(model, target), model, tokenizer, {"name": "mine"})
    write_gguf(own, file, kind)
    return own, GGUFReader(file)


def source(folder: Path, family: str, **changes: Any) -> Path:
    """Write a tiny source of a family, whose weights bfloat16 has exactly, and return its folder."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **SMALL | changes))
    model.bfloat16().float().save_pretrained(folder)
    return folder


def values(reader: GGUFReader, name: str) -> torch.Tensor:
    (tensor,) = (tensor for tensor in reader.tensors if tensor.name == name)
    return torch.from_numpy(dequantize(tensor.data, tensor.tensor_type).copy())


@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2", "qwen3"])
def test_a_softmax_student_of_any_source_is_a_source_again(family: str, tokenizer: Path, tmp_path: Path) -> None:
    """transformers reads the file back, rotated queries and keys included."""
    changes = {"sliding_window": None} if family == "mistral" else {"head_dim": 128} if family == "qwen3" else {}
    model = composer.build("softmax", source(tmp_path / "source", family, **changes))
    own, _ = written(model, tokenizer, tmp_path / "model-f32.gguf")
    assert own.architecture == {"mistral": "llama"}.get(family, family)
    again = composer.build("softmax", str(tmp_path / "model-f32.gguf"), dtype="float32")
    tokens = torch.randint(3, SMALL["vocab_size"], (2, 40), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        expected = model.eval()(tokens).logits
        torch.testing.assert_close(again.eval()(tokens).logits, expected, rtol=0, atol=1e-5 * float(expected.abs().max()))


def test_a_qwen3_5_has_plain_norms_and_decays(student: Path, tokenizer: Path, tmp_path: Path) -> None:
    model: Any = composer.load(student)
    own, reader = written(model, tokenizer, tmp_path / "model.gguf")
    weights = dict(model.named_parameters())
    assert own.architecture == reader.fields["general.architecture"].contents() == "qwen35"
    assert reader.fields["general.name"].contents() == "mine"
    assert reader.fields["qwen35.rope.dimension_sections"].contents() == [6, 5, 5, 0]
    assert reader.fields["qwen35.full_attention_interval"].contents() == 2
    assert reader.fields["tokenizer.ggml.tokens"].contents()[:3] == ["<pad>", "<bos>", "<eos>"]
    head = "model.layers.0.self_attn.composed.head."
    expected = {
        "token_embd.weight": weights["model.embed_tokens.weight"],
        "output_norm.weight": weights["model.norm.weight"],
        "blk.0.attn_norm.weight": weights["model.layers.0.input_layernorm.weight"],
        "blk.1.post_attention_norm.weight": weights["model.layers.1.post_attention_layernorm.weight"],
        "blk.0.ssm_a": -weights[f"{head}delta_gate.rate"].exp(),
        "blk.0.ssm_dt.bias": weights[f"{head}delta_gate.bias"],
        "blk.1.attn_output.weight": 2 * weights["model.layers.1.self_attn.o_proj.weight"],
    }
    for name, tensor in expected.items():
        torch.testing.assert_close(values(reader, name), tensor.detach(), rtol=1e-6, atol=1e-6)
    assert len(reader.tensors) == len(own.tensors) == 3 + 14 + 11, "both tables are complete"


def test_a_granite_has_empty_heads_beside_the_student_s(tokenizer: Path, tmp_path: Path) -> None:
    model = randomised(composer.build("native/granitemoehybrid", TEACHER, overrides=[EPSILON, NO_BIAS]))
    _, reader = written(model, tokenizer, tmp_path / "model.gguf")
    width, heads = model.config.hidden_size, model.config.num_attention_heads
    assert reader.fields["granitehybrid.ssm.inner_size"].contents() == 2 * width
    assert reader.fields["granitehybrid.attention.head_count_kv"].contents() == [0, 2]
    for name, rows in {"ssm_a": heads, "ssm_d": heads, "ssm_dt.bias": heads, "ssm_norm.weight": heads}.items():
        tensor = values(reader, f"blk.0.{name}")
        assert len(tensor) == 2 * rows
        assert bool(tensor[:rows].abs().min() > 0)
        assert not tensor[rows:].any()
    assert not values(reader, "blk.0.ssm_out.weight")[:, width:].any()


@pytest.mark.parametrize("name", ["native/mistral", "native/ministral"])
def test_windows_are_those_of_a_class_that_has_them(name: str, tokenizer: Path, tmp_path: Path) -> None:
    model = composer.build(name, TEACHER, overrides=["head.memory.0.size=16"])
    own, reader = written(model, tokenizer, tmp_path / "model.gguf")
    assert own.architecture == "granite_swa"
    assert reader.fields["granite_swa.attention.sliding_window"].contents() == 16
    assert reader.fields["granite_swa.attention.sliding_window_pattern"].contents() == [True, name == "native/mistral"]
    assert bool((values(reader, "blk.0.attn_sinks.weight") < -1e9).all()), "no weight for sinks"


def test_a_stretched_rotation_has_a_factor_for_each_frequency(tokenizer: Path, tmp_path: Path) -> None:
    model = composer.build("softmax", source(tmp_path / "llama", "llama", rope_parameters=LLAMA_3, max_position_embeddings=512))
    _, reader = written(model, tokenizer, tmp_path / "model.gguf")
    factors = values(reader, "rope_freqs.weight")
    assert factors.shape == (4,)
    assert float(factors[0]) == 1
    assert float(factors[-1]) == pytest.approx(8)
    yarn = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 64}
    model = composer.build("softmax", source(tmp_path / "yarn", "llama", rope_parameters=yarn, max_position_embeddings=256))
    with pytest.raises(ExportError, match="a rotation of the type yarn; expected default, linear or llama3"):
        written(model, tokenizer, tmp_path / "yarn.gguf")


@pytest.mark.parametrize("kind", TYPES)
def test_matrices_have_the_type_and_vectors_are_in_float32(kind: str, student: Path, tokenizer: Path, tmp_path: Path) -> None:
    own, reader = written(composer.load(student), tokenizer, tmp_path / "model.gguf", kind)
    types = {tensor.name: tensor.tensor_type.name.lower() for tensor in reader.tensors}
    assert {types[name] for name in types if "norm" in name or "ssm_a" in name or "conv1d" in name} == {"f32"}
    assert {types[name] for name in ("token_embd.weight", "output.weight", "blk.0.attn_qkv.weight", "blk.1.attn_q.weight")} == {
        kind
    }
    exact = own.tensors["blk.0.ffn_down.weight"]()
    closest = values(reader, "blk.0.ffn_down.weight")
    assert float((closest - exact).norm() / exact.norm()) < {"f32": 1e-7, "f16": 1e-3, "bf16": 3e-3, "q8_0": 1e-2}.get(kind, 0.15)


def test_rows_that_no_block_divides_are_in_float16(tokenizer: Path, tmp_path: Path) -> None:
    model = composer.build("softmax", source(tmp_path / "source", "llama", intermediate_size=40))
    _, reader = written(model, tokenizer, tmp_path / "model.gguf", "q8_0")
    types = {tensor.name: tensor.tensor_type.name for tensor in reader.tensors}
    assert (types["blk.0.ffn_down.weight"], types["blk.0.ffn_up.weight"]) == ("F16", "Q8_0")


@pytest.mark.parametrize(
    ("name", "target", "overrides", "problem"),
    [
        (
            "native/qwen3_5",
            "qwen3_next",
            [EPSILON, KEPT_EPSILON],
            "Qwen3-Next needs experts. `--for qwen3_5` has the same formulas",
        ),
        ("native/granitemoehybrid", None, [EPSILON], "no bias in the projections of Mamba-2.*--set head.output.bias=false"),
    ],
)
def test_a_class_that_llama_cpp_lacks_is_refused(
    name: str, target: str | None, overrides: list[str], problem: str, tokenizer: Path, tmp_path: Path
) -> None:
    with pytest.raises(ExportError, match=problem):
        written(composer.build(name, TEACHER, overrides=overrides), tokenizer, tmp_path / "model.gguf", target=target)


@pytest.mark.parametrize(
    ("family", "changes", "problem"),
    [
        ("gemma", {}, "llama.cpp does not compute GemmaForCausalLM: it has no class for gemma"),
        ("qwen2", {"hidden_act": "gelu"}, "llama.cpp computes silu alone in the MLP; hidden_act is gelu"),
        ("qwen2", {"use_sliding_window": True, "sliding_window": 16, "max_window_layers": 0}, "ignores the windows of the source"),
    ],
)
def test_a_source_that_llama_cpp_would_compute_otherwise_is_refused(
    family: str, changes: dict[str, Any], problem: str, tokenizer: Path, tmp_path: Path
) -> None:
    model = composer.build("softmax", source(tmp_path / "source", family, **changes))
    with pytest.raises(ExportError, match=problem):
        written(model, tokenizer, tmp_path / "model.gguf")


def test_the_folder_has_the_file_the_card_and_the_record(student: Path, tmp_path: Path) -> None:
    report = composer.export(student, tmp_path / "out", gguf=True, quantize="q8_0")
    assert report.remarks == (
        "model-q8_0.gguf: qwen35 of llama.cpp",
        "not compared: llama-cpp-python is not installed (pip install llama-cpp-python)",
    )
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names == {"model-q8_0.gguf", "README.md", "composition.svg", "export.json", "spec.yaml"}
    card = (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    assert f"Written by `compose export {student} --gguf --quantize q8_0 -o {tmp_path / 'out'}`." in card
    assert 'Llama("model-q8_0.gguf")' in card
    outcomes = {check.what: check.outcome for check in composer.verify(tmp_path / "out").checks}
    assert outcomes == {"contents": "passed", "logits": "unknown"}
    (tmp_path / "out" / "model-q8_0.gguf").write_bytes(b"changed")
    with pytest.raises(ComposerError, match="model-q8_0.gguf"):
        composer.export(student, tmp_path / "out", gguf=True, force=True)


def test_nothing_appears_where_writing_fails(student: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("gguf.quants.quantize", fails)
    with pytest.raises(ComposerError, match="No space left"):
        composer.export(student, tmp_path / "out", gguf=True)
    assert not [path for path in tmp_path.iterdir() if not path.name.endswith(".lock")]


def test_options_that_do_not_fit_are_refused(student: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for options, problem in (
        ({"gguf": True, "quantize": "q4_k"}, "q4_k.*cannot write this type; expected one of f32, f16, .*q4_0.*llama-quantize"),
        ({"quantize": "q8_0"}, "add `gguf=True`"),
        ({"gguf": True, "native": True}, "expected one of them"),
    ):
        with pytest.raises(ComposerError, match=problem):
            composer.export(student, tmp_path / "out", **options)
    monkeypatch.setattr("composer.exporting.gguf.types.find_spec", lambda _: None)
    with pytest.raises(ComposerError, match=r"needs the package gguf: pip install '.\[gguf\]'"):
        composer.export(student, tmp_path / "out", gguf=True)
    assert not (tmp_path / "out").exists()
