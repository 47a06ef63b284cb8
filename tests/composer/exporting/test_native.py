"""A model that a transformers class computes is exported as that class with equal logits and text, and every difference is
refused.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers.models.qwen3_next.modeling_qwen3_next as qwen3_next
from transformers import AutoConfig, AutoModelForCausalLM

import composer
from composer.errors import ExportError
from composer.exporting.native import Native, model_of, native_of
from tests.composer.exporting.models import LENGTH, check_equal, generated, padded, randomised, texts

TEACHER = Path(__file__).parents[3] / "examples" / "teacher"
SMALL = {
    "vocab_size": 61, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "head_dim": 8,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 256,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
FITS = "gdn-hybrid-qwen3-next"
EPSILON, KEPT_EPSILON = "head.output.epsilon=1e-6", "heads.kept.qk_norm.epsilon=1e-6"
"""The teacher's."""
GATED = "heads.kept.output=gate"


@pytest.fixture(autouse=True)
def plain_functions(monkeypatch: pytest.MonkeyPatch) -> None:
    """With flash-linear-attention installed, transformers uses its kernels even without a GPU."""
    for name in ("torch_chunk_gated_delta_rule", "torch_recurrent_gated_delta_rule", "causal_conv1d_fn", "causal_conv1d_update"):
        function = getattr(qwen3_next, name)
        monkeypatch.setattr(qwen3_next, name, getattr(function, "__wrapped__", function))


def loaded(native: Native, model: Any) -> Any:
    """Return the transformers class with the weights of a model."""
    own = model_of(native)
    own.load_state_dict(model.state_dict() if native.weights is None else native.weights)
    return own.eval()


@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma2", "mixtral", "gpt_oss"])
def test_softmax_in_every_layer_is_the_host_s_own_class(family: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    options = {"num_local_experts": 2, "num_experts_per_tok": 1} if family in ("mixtral", "gpt_oss") else {}
    source = AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **SMALL | options))
    source.save_pretrained(tmp_path)
    model = composer.build("softmax", tmp_path)
    native = native_of(model)
    assert native.architecture == type(source).__name__
    assert native.weights is None, "the model's files are those of the class"
    check_equal(model, source.eval(), SMALL["vocab_size"])


@pytest.mark.parametrize(
    ("name", "overrides", "architecture"),
    [
        ("window", [], "MistralForCausalLM"),
        ("window", ["heads.full={memory: [full]}", "layers=[{at: -1, use: full}]"], "MinistralForCausalLM"),
        (FITS, [EPSILON, KEPT_EPSILON], "Qwen3NextForCausalLM"),
        (FITS, [EPSILON, KEPT_EPSILON, GATED, "head.conv.kernel=3"], "Qwen3NextForCausalLM"),
        (FITS, [EPSILON, KEPT_EPSILON, "head.conv.per=key_head"], "Qwen3NextForCausalLM"),
    ],
)
def test_it_computes_what_the_model_does(name: str, overrides: list[str], architecture: str) -> None:
    model = randomised(composer.build(name, TEACHER, overrides=overrides))
    native = native_of(model)
    assert native.architecture == architecture
    tokens, mask = texts(507, LENGTH)
    own = loaded(native, model)
    with torch.no_grad():
        expected = padded(model, tokens, mask)
        torch.testing.assert_close(padded(own, tokens, mask), expected, rtol=0, atol=3e-5 * float(expected.abs().max()))
    assert torch.equal(generated(own, tokens, mask), generated(model, tokens, mask))


@pytest.mark.parametrize(
    ("name", "overrides", "expected"),
    [
        ("lolcats", [], ["`feature_map` is hedgehog", "`memory` is [window, state]; expected [full]", "`read` is shared"]),
        ("softmax", ["head.position=none"], ["`memory.0.position` is none; expected rope"]),
        ("window", ["heads.other={memory: [{kind: window, size: 8, evict: drop}]}", "layers=[{at: -1, use: other}]"],
         ["memory.0.size"]),
        ("gdn-hybrid", [], ["layer 0: `output.epsilon` is 1e-05; expected 1e-06", "layer 1: `qk_norm` is not set", "biases"]),
        ("gated-deltanet", [EPSILON], ["no layer has softmax attention", "biases"]),
        (FITS, [EPSILON, KEPT_EPSILON, "head.memory.0.scale=none", "head.memory.0.rate.largest=2"],
         ["`memory.0.rate.largest` is 2; expected 1", "`memory.0.scale` is none; expected root"]),
        (FITS, [EPSILON, KEPT_EPSILON, "head.conv.activation=none"], ["`conv.activation` is none; expected silu"]),
        (FITS, [EPSILON, KEPT_EPSILON, "head.output.rank=8"], ["`output.rank` is 8; expected full"]),
        ("kda-hybrid", [],
         ["`memory.0.gate` is softplus_channel; expected softplus", "`output.activation` is sigmoid"]),
    ],
)  # fmt: skip
def test_all_differences_are_listed_at_once(name: str, overrides: list[str], expected: list[str]) -> None:
    with pytest.raises(ExportError) as error:
        native_of(randomised(composer.build(name, TEACHER, overrides=overrides)))
    for difference in expected:
        assert difference in str(error.value)


def test_weights_that_the_class_would_round_are_refused() -> None:
    model = randomised(composer.build(FITS, TEACHER, overrides=[EPSILON, KEPT_EPSILON], dtype="bfloat16"))
    with torch.no_grad():
        model.model.norm.weight[0] = 0.0123
        for name, parameter in model.named_parameters():
            if name.endswith("layernorm.weight"):
                parameter.fill_(1.0)
    with pytest.raises(ExportError) as error:
        native_of(model)
    assert "model.norm.weight: the class stores w - 1" in str(error.value)
    assert "delta_gate.rate: kept in float32 here" in str(error.value)


def test_other_blocks_than_llama_s_are_a_difference(tmp_path: Path) -> None:
    AutoModelForCausalLM.from_config(AutoConfig.for_model("qwen3", **SMALL)).save_pretrained(tmp_path)
    with pytest.raises(ExportError, match="are those of qwen3; expected those of llama"):
        native_of(composer.build("gdn-hybrid", tmp_path))


@pytest.fixture
def built(tmp_path: Path) -> tuple[Path, Path]:
    """Folders of a softmax model, and of a hybrid that equals Qwen3-Next."""
    composer.build_folder("softmax", TEACHER, tmp_path / "softmax")
    randomised(composer.build(FITS, TEACHER, overrides=[EPSILON, KEPT_EPSILON, GATED])).save_pretrained(tmp_path / "hybrid")
    return tmp_path / "softmax", tmp_path / "hybrid"


def test_the_folder_loads_without_trust_in_code(built: tuple[Path, Path], tmp_path: Path) -> None:
    for folder, architecture in zip(built, ("LlamaForCausalLM", "Qwen3NextForCausalLM"), strict=True):
        out = tmp_path / architecture
        report = composer.export(folder, out, native=True)
        assert (report.architecture, report.file) == (architecture, None)
        own = AutoModelForCausalLM.from_pretrained(out)
        assert type(own).__name__ == architecture
        tokens, mask = texts(507, LENGTH)
        with torch.no_grad():
            expected = padded(composer.load(folder), tokens, mask)
            torch.testing.assert_close(padded(own, tokens, mask), expected, rtol=0, atol=3e-5 * float(expected.abs().max()))
        assert not list(out.glob("*.py"))
        assert "auto_map" not in json.loads((out / "config.json").read_text(encoding="utf-8"))
        verified = composer.verify(out)
        assert verified.ok
        assert {check.what for check in verified.checks} == {"contents", "logits"}


def test_a_trained_student_is_a_qwen3_next(tmp_path: Path) -> None:
    """Its spec fits the class from the start, so that nothing is removed from trained weights."""
    (tmp_path / "texts.txt").write_text("the little dog sat in the sun and it was happy. " * 40, encoding="utf-8")
    composer.build_folder(FITS, TEACHER, tmp_path / "built", overrides=[EPSILON, KEPT_EPSILON])
    steps = [
        f"recipe.{stage}.{item}" for stage in ("transfer", "finetune") for item in ("tokens=null", "steps=2", "batch=2", "lr=1e-2")
    ]
    composer.distill(tmp_path / "built", str(tmp_path / "texts.txt"), out=tmp_path / "trained",
                     overrides=["recipe.sequence=32", *steps], progress=False)  # fmt: skip
    composer.export(tmp_path / "trained", tmp_path / "native", native=True)
    start, model = composer.load(tmp_path / "built"), composer.load(tmp_path / "trained")
    own = AutoModelForCausalLM.from_pretrained(tmp_path / "native")
    assert type(own).__name__ == "Qwen3NextForCausalLM"
    tokens, mask = texts(507, LENGTH)
    with torch.no_grad():
        expected = padded(model, tokens, mask)
        torch.testing.assert_close(padded(own, tokens, mask), expected, rtol=0, atol=3e-5 * float(expected.abs().max()))
        assert float((padded(start, tokens, mask) - expected).abs().max()) > 0.01 * float(expected.abs().max()), "it has learned"


def test_a_native_folder_is_a_source_like_any_other(built: tuple[Path, Path], tmp_path: Path) -> None:
    composer.export(built[0], tmp_path / "native", native=True)
    composer.build_folder("lolcats", tmp_path / "native", tmp_path / "again")
    assert composer.verify(tmp_path / "again").ok


def test_nothing_is_written_where_no_class_fits(tmp_path: Path) -> None:
    composer.build_folder("lolcats", TEACHER, tmp_path / "built")
    with pytest.raises(composer.ComposerError, match="Export without this option"):
        composer.export(tmp_path / "built", tmp_path / "out", native=True)
    assert not (tmp_path / "out").exists()
