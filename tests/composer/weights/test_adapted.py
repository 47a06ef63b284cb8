"""LoRA that PEFT saved is merged with its model wherever that is opened: beside the weights, or in a folder that names them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

import composer
from composer.errors import ComposerError, SourceError
from composer.weights.record import read_record
from composer.weights.sources import open_model
from tests.checkpoints import llama, logits
from tests.composer.cli.conftest import Compose, compose, student, teacher

pytestmark = pytest.mark.long

__all__ = ["compose", "student", "teacher"]

IDS = torch.arange(11)[None]
TARGETS = ["q_proj", "v_proj", "down_proj"]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMPOSER_CACHE", str(tmp_path / "cache"))


def save_adapter(base: Path, folder: Path, **config: Any) -> Path:
    """Save random LoRA for the model of a folder, as PEFT does."""
    torch.manual_seed(0)
    model = get_peft_model(AutoModelForCausalLM.from_pretrained(base), LoraConfig(**{"target_modules": TARGETS, **config}))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_" in name or "modules_to_save" in name:
                parameter.add_(0.2 * torch.randn(parameter.shape))
    model.save_pretrained(str(folder))
    return folder


@torch.no_grad()
def with_peft(base: Path, adapter: Path) -> torch.Tensor:
    return PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), adapter).eval()(IDS).logits


@pytest.mark.parametrize("task", [None, "CAUSAL_LM"])
def test_adapters_beside_weights_are_applied_as_in_transformers(teacher: Path, tmp_path: Path, task: str | None) -> None:
    """Without a task, PEFT notes the model's class in ``auto_mapping``."""
    folder = shutil.copytree(teacher, tmp_path / "both")
    save_adapter(folder, folder, task_type=task)
    assert bool(json.loads((folder / "adapter_config.json").read_text())["auto_mapping"]) == (task is None)
    composer.build_folder("softmax", folder, tmp_path / "student")
    expected = logits(AutoModelForCausalLM.from_pretrained(folder), IDS)
    torch.testing.assert_close(logits(composer.load(tmp_path / "student"), IDS), expected, rtol=0, atol=2e-5)
    torch.testing.assert_close(logits(composer.build("softmax", folder), IDS), expected, rtol=0, atol=2e-5)
    assert (expected - logits(AutoModelForCausalLM.from_pretrained(teacher), IDS)).abs().max() > 0.1
    assert composer.build("softmax", folder, dtype="bfloat16").config.dtype == torch.bfloat16
    record = read_record(tmp_path / "student")
    assert record is not None
    assert record.source is not None
    assert record.source.unpacked is not None
    assert (record.source.unpacked.path, record.source.unpacked.quantisation) == (str(folder), "weights with LoRA")
    assert {"adapter_config.json", "adapter_model.safetensors", "model.safetensors"} <= record.source.unpacked.files.keys()


CONFIGS = {
    "of PEFT's defaults": {},
    "with whole modules": {"modules_to_save": ["composed"]},
    "of several ranks": {"use_rslora": True, "bias": "all", "rank_pattern": {"v_proj": 2}},
}


@pytest.mark.usefixtures("without_comparison")
@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_every_command_opens_the_adapters_of_a_student(
    compose: Compose, student: Path, teacher: Path, tmp_path: Path, config: dict[str, Any]
) -> None:
    adapter = save_adapter(student, tmp_path / "adapter", **config)
    expected = with_peft(student, adapter)
    torch.testing.assert_close(logits(composer.load(adapter), IDS), expected, rtol=0, atol=2e-5)
    if config:
        return
    Path("text.txt").write_text("once upon a time there was a cat and it slept\n" * 20)
    for arguments in (
        ("generate", adapter, "--prompt", "once upon", "--max-new-tokens", "2"),
        ("eval", adapter, "--tasks", "perplexity", "--text", "text.txt", "--lengths", "16", "--samples", "1"),
        ("merge", adapter, "-o", "merged"),
        ("export", "merged", "-o", "exported"),
        ("build", "lola", "--from", adapter, "-o", "built"),
        ("inspect", adapter, "--text", "text.txt", "--length", "16", "--alone"),
        ("verify", "merged"),
    ):
        result = compose(*arguments)
        assert result.exit_code == 0, (arguments, result.output)
    torch.testing.assert_close(logits(composer.load("merged"), IDS), expected, rtol=0, atol=2e-5)
    record = read_record(Path("merged"))
    assert record is not None
    assert record.saved[-1].changed == 6


def test_the_opened_model_is_named(student: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    adapter = save_adapter(student, tmp_path / "adapter")
    AutoTokenizer.from_pretrained(student).save_pretrained(adapter)
    with caplog.at_level("INFO"):
        source = open_model(adapter)
    assert f"{adapter} has adapters for {student}" in caplog.text
    assert (source.folder / "tokenizer.json").read_bytes() == (adapter / "tokenizer.json").read_bytes()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"base_model_name_or_path": "../nowhere"},
            r"'\.\./nowhere' .*cannot be opened: .*Set base_model_name_or_path to the model's path",
        ),
        ({"base_model_name_or_path": None}, "names the model None .*expected a folder or a model of the Hub"),
        ({"base_model_name_or_path": "ADAPTER"}, "which has adapters, too"),
        ({"r": 2**40}, "adapters of rank 1099511627776"),
        ({"rank_pattern": {"q_proj": 2**40}}, "adapters of rank 1099511627776"),
        ({"target_modules": "(a+)+"}, "expected a list of names of modules"),
        ({"target_modules": ["(a+)+"]}, "expected a list of names of modules"),
        ({"corda_config": {"covariance_file": "x.pt"}}, "'corda_config'.*do not support"),
        ({"auto_mapping": {"parent_library": "evil.module"}}, r"needs its own code \(auto_mapping.*merge_and_unload"),
        ({"peft_type": "IA3"}, "adapters of the type 'IA3'"),
        ({"target_modules": ["k_proj"]}, "have different adapters"),
    ],
)
def test_adapters_that_cannot_be_merged_are_refused(student: Path, tmp_path: Path, change: dict[str, Any], message: str) -> None:
    adapter = save_adapter(student, tmp_path / "adapter")
    config = json.loads((adapter / "adapter_config.json").read_text())
    named = {key: str(adapter) if value == "ADAPTER" else value for key, value in change.items()}
    (adapter / "adapter_config.json").write_text(json.dumps(config | named))
    with pytest.raises(ComposerError, match=message):
        composer.load(adapter)
    assert not list((tmp_path / "cache").rglob("*.safetensors"))


def test_adapters_of_a_tied_embedding_are_refused(tmp_path: Path) -> None:
    """Merged, they would change the output, too."""
    folder = llama(tmp_path / "both", tie_word_embeddings=True)
    save_adapter(folder, folder, target_modules=["embed_tokens"])
    with pytest.raises(SourceError, match="changes an embedding that is tied to the output"):
        composer.build_folder("softmax", folder, tmp_path / "student")


def test_adapters_with_other_tensors_or_none_are_refused(student: Path, tmp_path: Path) -> None:
    adapter = save_adapter(student, tmp_path / "adapter")
    tensors = load_file(adapter / "adapter_model.safetensors")
    save_file({**tensors, "base_model.model.other.lora_A.weight": torch.zeros(8, 8)}, adapter / "adapter_model.safetensors")
    with pytest.raises(SourceError, match=r"have different adapters: base_model\.model\.other"):
        composer.load(adapter)
    (adapter / "adapter_model.safetensors").unlink()
    with pytest.raises(SourceError, match=r"and no adapter_model\.safetensors"):
        composer.load(adapter)
