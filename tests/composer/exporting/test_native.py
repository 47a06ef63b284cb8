"""A model that a transformers class computes is exported as that class with equal logits and text, and every difference is
refused.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
from transformers.models.qwen3_5 import modeling_qwen3_5
from transformers.models.qwen3_next import modeling_qwen3_next

import composer
from composer.errors import ExportError
from composer.exporting.native import Native, model_of, native_of
from composer.exporting.targets import TARGETS
from composer.spec.loading import load_spec
from tests.composer.exporting.models import LENGTH, check_equal, generated, in_pieces, padded, randomised, texts
from tests.covers import some

pytestmark = pytest.mark.long

TEACHER = Path(__file__).parents[3] / "examples" / "teacher"
SMALL = {
    "vocab_size": 61, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "head_dim": 8,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 256,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
FITS, MAMBA = "native/qwen3_5", "native/granitemoehybrid"
EPSILON, KEPT_EPSILON = "head.output.epsilon=1e-6", "heads.kept.qk_norm.epsilon=1e-6"
"""The teacher's."""
GATED = "heads.kept.output={kind: gate, bias: false}"
SHORT = "head.memory.0.size=16"
CLOSE = 1e-5
"""The largest difference of logits, as a share of the largest one."""


@pytest.fixture(autouse=True)
def plain_functions(monkeypatch: pytest.MonkeyPatch) -> None:
    """With flash-linear-attention installed, transformers uses its kernels even without a GPU."""
    for module in (modeling_qwen3_5, modeling_qwen3_next):
        for name in (
            "torch_chunk_gated_delta_rule",
            "torch_recurrent_gated_delta_rule",
            "causal_conv1d_fn",
            "causal_conv1d_update",
        ):
            function = getattr(module, name)
            monkeypatch.setattr(module, name, getattr(function, "__wrapped__", function))


def loaded(native: Native, model: Any) -> Any:
    """Return the transformers class with the weights of a model."""
    own = model_of(native)
    own.load_state_dict(model.state_dict() if native.weights is None else native.weights)
    return own.eval()


@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma2", "mixtral", "gpt_oss"])
def test_softmax_students_are_exported_as_the_class_of_their_host(family: str, tmp_path: Path) -> None:
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
        ("native/mistral", [SHORT], "MistralForCausalLM"),
        ("native/ministral", [SHORT], "MinistralForCausalLM"),
        (FITS, [EPSILON, KEPT_EPSILON], "Qwen3_5ForCausalLM"),
        (FITS, [EPSILON, KEPT_EPSILON], "Qwen3NextForCausalLM"),
        (FITS, [EPSILON, KEPT_EPSILON, GATED, "head.conv.kernel=3"], "Qwen3_5ForCausalLM"),
        (FITS, [EPSILON, KEPT_EPSILON, "head.conv.per=key_head"], "Qwen3_5ForCausalLM"),
        (MAMBA, [EPSILON], "GraniteMoeHybridForCausalLM"),
        (MAMBA, [EPSILON, "head.output.bias=false", "head.memory.0.gate.per=key_head"], "GraniteMoeHybridForCausalLM"),
    ],
)
def test_native_classes_equal_their_models(name: str, overrides: list[str], architecture: str) -> None:
    model = randomised(composer.build(name, TEACHER, overrides=overrides))
    check_class(model, architecture)


def check_class(model: Any, architecture: str) -> None:
    """Check that a model is written as a class with equal logits: with padding, in pieces, and in greedy text."""
    (target,) = (target.name for target in TARGETS.values() if target.architecture == architecture)
    native = native_of(model, target)
    assert native.architecture == architecture
    tokens, mask = texts(model.config.vocab_size, LENGTH)
    own = loaded(native, model)
    with torch.no_grad():
        for compute in (lambda each: padded(each, tokens, mask), lambda each: in_pieces(each, tokens)):
            expected = compute(model)
            torch.testing.assert_close(compute(own), expected, rtol=0, atol=CLOSE * float(expected.abs().max()))
    assert torch.equal(generated(own, tokens, mask), generated(model, tokens, mask))


def test_students_of_mistral_are_exported_as_native_classes(tmp_path: Path) -> None:
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(AutoConfig.for_model("mistral", **SMALL, sliding_window=None)).save_pretrained(tmp_path)
    check_class(randomised(composer.build(MAMBA, tmp_path, overrides=[EPSILON])), "GraniteMoeHybridForCausalLM")
    check_class(randomised(composer.build("native/mistral", tmp_path, overrides=[SHORT])), "MistralForCausalLM")


@pytest.mark.parametrize("family", ["qwen2", "qwen3"])
def test_a_qwen_with_windows_is_its_own_class(family: str, tmp_path: Path) -> None:
    """Biases of queries, keys and values, and norms of queries and keys, are around every head."""
    torch.manual_seed(0)
    source = AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **SMALL))
    with torch.no_grad():
        for name, parameter in source.named_parameters():
            if name.endswith(".bias") or "q_norm" in name:
                parameter.normal_()
    source.save_pretrained(tmp_path)
    check_class(composer.build("native/ministral", tmp_path, overrides=[SHORT]).eval(), f"{family.title()}ForCausalLM")


@pytest.mark.parametrize(
    ("name", "overrides", "expected"),
    [
        ("lolcats", [], ["`feature_map` is hedgehog", "`memory` is [window, state]; expected [", "`read` is shared"]),
        ("softmax", ["head.position=none"], ["`memory.0.position` is none; expected rope"]),
        ("window", ["heads.other={memory: [{kind: window, size: 8, evict: drop}]}", "layers=[{at: -1, use: other}]"],
         ["`memory.0.size` is 64 and 8", "Set `heads.other.memory.0.size` to 64."]),
        ("gdn-hybrid", [], ["Qwen3_5ForCausalLM comes closest", "layer 0: `output.epsilon` is 1e-05; expected 1e-06",
                            "`output.bias` is true; expected false", "layer 1: `qk_norm` is not set", "in place of `source`."]),
    ],
)  # fmt: skip
def test_all_differences_are_listed_at_once(name: str, overrides: list[str], expected: list[str]) -> None:
    with pytest.raises(ExportError) as error:
        native_of(randomised(composer.build(name, TEACHER, overrides=overrides)))
    for difference in expected:
        assert difference in str(error.value)


def test_bfloat16_models_are_written_in_float32() -> None:
    model = randomised(composer.build(FITS, TEACHER, overrides=[EPSILON, KEPT_EPSILON], dtype="bfloat16"))
    native = native_of(model)
    assert native.config["dtype"] == "float32"
    check_class(model.float(), "Qwen3_5ForCausalLM")


def test_blocks_unlike_llamas_are_refused(tmp_path: Path) -> None:
    AutoModelForCausalLM.from_config(AutoConfig.for_model("qwen3", **SMALL)).save_pretrained(tmp_path)
    with pytest.raises(ExportError, match="are those of qwen3; expected those of llama or mistral"):
        native_of(composer.build(FITS, tmp_path), "qwen3_5")


@pytest.fixture
def exported(tmp_path: Path, quick_comparison: None) -> Path:
    """The folder of a softmax model as the source's class."""
    composer.build_folder("softmax", TEACHER, tmp_path / "softmax")
    assert composer.export(tmp_path / "softmax", tmp_path / "exported", native=True).architecture == "LlamaForCausalLM"
    return tmp_path / "exported"


@pytest.mark.usefixtures("without_comparison")
@pytest.mark.parametrize("target", some(["qwen3_5", "granitemoehybrid", "mistral"], ["qwen3_5"]))
def test_trained_students_of_new_specs_are_exported_as_their_target(target: str, tmp_path: Path) -> None:
    """Its spec fits the class from the start, so that nothing is removed from trained weights."""
    (tmp_path / "texts.txt").write_text("the little dog sat in the sun and it was happy. " * 40, encoding="utf-8")
    spec = composer.new(tmp_path / "mine", target=target, source=TEACHER)
    recipe = load_spec(spec).recipe
    assert recipe is not None
    stages = [stage for stage in ("transfer", "finetune") if getattr(recipe, stage) is not None]
    steps = [
        f"recipe.{stage}.{item}" for stage in stages for item in ("tokens=null", "epochs=null", "steps=2", "batch=2", "lr=1e-2")
    ]
    window = [SHORT] if target == "mistral" else []
    composer.build_folder(spec, TEACHER, tmp_path / "built", overrides=window)
    composer.distill(tmp_path / "built", str(tmp_path / "texts.txt"), out=tmp_path / "trained",
                     overrides=["recipe.sequence=32", *steps], progress=False)  # fmt: skip
    start: Any = composer.load(tmp_path / "built")
    model: Any = composer.load(tmp_path / "trained")
    tokens, mask = texts(507, LENGTH)
    settings = {"max_new_tokens": 64, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    composer.export(tmp_path / "trained", tmp_path / "native", native=True, target=target)
    own: Any = AutoModelForCausalLM.from_pretrained(tmp_path / "native")
    assert type(own).__name__ == TARGETS[target].architecture
    with torch.no_grad():
        expected = padded(model, tokens, mask)
        torch.testing.assert_close(padded(own, tokens, mask), expected, rtol=0, atol=CLOSE * float(expected.abs().max()))
        assert float((padded(start, tokens, mask) - expected).abs().max()) > 0.01 * float(expected.abs().max()), "it has learned"
    assert torch.equal(own.generate(tokens[2:, :32], **settings), model.generate(tokens[2:, :32], **settings))
    sentence = "once upon a time there was a key, 123."
    tokenizers = [AutoTokenizer.from_pretrained(folder) for folder in (TEACHER, tmp_path / "native")]
    assert len({tuple(tokenizer.encode(sentence)) for tokenizer in tokenizers}) == 1, "transformers has other tokenizers for types"
    assert "auto_map" not in json.loads((tmp_path / "native" / "config.json").read_text(encoding="utf-8"))
    assert not list((tmp_path / "native").glob("*.py"))


def test_native_folders_are_sources(exported: Path, tmp_path: Path) -> None:
    assert composer.verify(exported).ok
    composer.build_folder("lolcats", exported, tmp_path / "again")
    assert composer.verify(tmp_path / "again").ok


def test_nothing_is_written_if_no_class_fits(tmp_path: Path) -> None:
    composer.build_folder("lolcats", TEACHER, tmp_path / "built")
    with pytest.raises(composer.ComposerError, match="export without this option"):
        composer.export(tmp_path / "built", tmp_path / "out", native=True)
    with pytest.raises(
        composer.ComposerError, match="qwen is no class that students are written as; expected one of source, mistral"
    ):
        composer.export(tmp_path / "built", tmp_path / "out", native=True, target="qwen")
    with pytest.raises(composer.ComposerError, match="add `native=True`"):
        composer.export(tmp_path / "built", tmp_path / "out", target="qwen3_5")
    assert not (tmp_path / "out").exists()
