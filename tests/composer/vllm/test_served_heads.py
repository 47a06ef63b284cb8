"""An engine that runs a model's heads computes what the model computes: requests at different positions, chunks, reused pages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

import composer
from composer.vllm.folder import check_servable, keeps_states
from composer.vllm.pages import Pages
from tests.composer.exporting.models import randomised
from tests.composer.model.models import FEW
from tests.composer.vllm.engine import serve

ROOT = Path(__file__).parents[3]
TEACHER = ROOT / "examples" / "teacher"
LENGTHS = (1, 2, 33, 70, 5, 64)
TWO_GROUPS = {
    "compose": 1,
    "name": "two",
    "heads": {"a": {"memory": {"kind": "full"}}, "b": {"memory": [{"kind": "window", "size": 8}, {"kind": "delta"}]}},
    "layers": [{"heads": [{"head": "a", "share": 0.5}, {"head": "b", "share": 0.5}]}],
}
SMALL: dict[str, Any] = {
    "vocab_size": 61, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "head_dim": 8, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 256, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip


def texts(vocabulary: int) -> list[torch.Tensor]:
    drawn = torch.randint(0, vocabulary, (sum(LENGTHS),), generator=torch.Generator().manual_seed(1))
    return list(drawn.split(LENGTHS))


def check_served(model: Any, tolerance: float = 2e-5) -> None:
    prompts = texts(model.config.vocab_size)
    with torch.no_grad():
        wanted = [model(text[None]).logits[0] for text in prompts]
    for ours, theirs in zip(wanted, serve(model, prompts), strict=True):
        assert float((ours - theirs).abs().max() / ours.abs().max()) < tolerance


@pytest.mark.parametrize("name", FEW)
def test_served_specs_have_the_logits_of_the_model(name: str) -> None:
    check_served(randomised(composer.build(name, TEACHER, overrides=["trunk=null"])))


def test_served_means_of_many_blocks_have_the_logits_of_the_model() -> None:
    """Tensors that grow by one row for four tokens."""
    small = ["head.memory.0.size=4", "head.memory.1.size=4", "head.memory.1.count=3"]
    check_served(randomised(composer.build("nsa", TEACHER, overrides=small)))


@pytest.mark.parametrize(("family", "more"), [("qwen3", {}), ("gemma2", {"sliding_window": 16, "query_pre_attn_scalar": 24})])
@pytest.mark.parametrize("name", ["lolcats", "hybrid"])
def test_served_students_of_other_hosts_have_the_logits_of_the_model(
    family: str, more: dict[str, Any], name: str, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **SMALL | more)).save_pretrained(tmp_path)
    check_served(randomised(composer.build(name, tmp_path)))


def test_a_state_of_another_request_would_show(monkeypatch: pytest.MonkeyPatch) -> None:
    model = composer.build("lolcats", TEACHER)
    monkeypatch.setattr(Pages, "write", lambda *_: None)
    with pytest.raises(AssertionError):
        check_served(model)


def test_only_models_with_a_state_keep_states() -> None:
    assert not keeps_states(composer.build("softmax", TEACHER).config)
    assert keeps_states(composer.build("lolcats", TEACHER).config)


def test_models_that_generate_no_text_are_refused() -> None:
    with pytest.raises(ValueError, match="bidirectional model writes no text"):
        check_servable(composer.build("latte-bidirectional", TEACHER).config)
