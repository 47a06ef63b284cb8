"""PEFT's adapters change a student as they change its source, with PEFT's defaults. Adapters with keys and values are rejected."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from peft import (
    IA3Config,
    LNTuningConfig,
    LoraConfig,
    PeftModel,
    PrefixTuningConfig,
    PromptEncoderConfig,
    PromptTuningConfig,
    get_peft_model,
)

from tests.composer.model.models import pair, student, tokens

CAUSAL: dict[str, Any] = {"task_type": "CAUSAL_LM"}
ADAPTERS: dict[str, Callable[[], Any]] = {
    "lora": lambda: LoraConfig(**CAUSAL),
    "lora of all layers": lambda: LoraConfig(target_modules="all-linear", use_dora=True, **CAUSAL),
    "lora and embeddings": lambda: LoraConfig(modules_to_save=["embed_tokens"], **CAUSAL),
    "ia3": lambda: IA3Config(**CAUSAL),
    "norms": lambda: LNTuningConfig(**CAUSAL),
    "prompt tuning": lambda: PromptTuningConfig(num_virtual_tokens=3, **CAUSAL),
    "p-tuning": lambda: PromptEncoderConfig(num_virtual_tokens=3, encoder_hidden_size=16, **CAUSAL),
}


def adapted(model: Any, adapter: str) -> PeftModel:
    """Return a copy with this adapter and parameters away from their start."""
    torch.manual_seed(0)
    changed = get_peft_model(copy.deepcopy(model), ADAPTERS[adapter]())
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in changed.parameters():
            if parameter.requires_grad:
                parameter += 0.05 * torch.randn(parameter.shape, generator=generator)
    return changed.eval()  # pyright: ignore[reportReturnType]


@pytest.mark.parametrize("adapter", ADAPTERS)
@pytest.mark.parametrize("host", ["llama", "qwen3"])
def test_adapters_change_a_student_as_they_change_its_source(host: str, adapter: str) -> None:
    """Loss, gradients and generated text match with padding, and no config lists target modules."""
    ids, mask, outcomes = tokens(2, 9).clamp(max=90), torch.ones(2, 9, dtype=torch.int64), []
    mask[0, -3:] = 0
    for model in pair(host):
        changed = adapted(model, adapter)
        loss = changed(input_ids=ids, attention_mask=mask, labels=ids.masked_fill(mask == 0, -100)).loss
        loss.backward()
        norm = sum(float(parameter.grad.norm()) for parameter in changed.parameters() if parameter.grad is not None)
        with torch.no_grad():
            settings: dict[str, Any] = {"max_new_tokens": 4, "do_sample": False, "eos_token_id": None}
            text = changed.generate(input_ids=ids[1:], attention_mask=mask[1:], **settings)
        outcomes.append((loss.item(), norm, text.tolist()))
    (loss, norm, text), (loss_of_student, norm_of_student, text_of_student) = outcomes
    assert loss_of_student == pytest.approx(loss, rel=1e-4)
    assert norm_of_student == pytest.approx(norm, rel=1e-3)
    assert text_of_student == text


@pytest.mark.parametrize("call", ["forward", "generate"])
def test_a_prefix_of_keys_and_values_is_refused(call: str) -> None:
    model = get_peft_model(student("lolcats").float(), PrefixTuningConfig(num_virtual_tokens=3, **CAUSAL))
    ids = tokens(1, 6)
    with pytest.raises(TypeError, match="PEFT's prefix tuning and cartridges pass keys and values.*use prompt tuning"):
        model(input_ids=ids) if call == "forward" else model.generate(input_ids=ids, max_new_tokens=2)


def test_adapters_of_nested_modules_are_saved_and_merged(tmp_path: Any) -> None:
    """Saved adapters load, and merge into the weights."""
    model = get_peft_model(student("lolcats"), LoraConfig(target_modules=["self_attn.o_proj", "mlp.down_proj"], **CAUSAL))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if ".lora_B." in name:
                parameter.normal_(std=0.1)
    ids = tokens(1, 12)
    model.eval().save_pretrained(tmp_path)
    loaded = PeftModel.from_pretrained(student("lolcats"), tmp_path)
    wanted = model(input_ids=ids).logits
    assert not torch.allclose(wanted, student("lolcats")(ids).logits)
    assert torch.equal(loaded(input_ids=ids).logits, wanted)
    torch.testing.assert_close(loaded.merge_and_unload()(ids).logits, wanted, rtol=1e-9, atol=1e-9)
