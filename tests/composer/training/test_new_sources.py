"""A hybrid, a model that reads images and the text decoder of one go from a build through both stages to generated text."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

import composer
from composer.training.finetune import merge_adapters
from composer.weights.verify import verify
from tests.composer.hosts.families import small
from tests.composer.hosts.multimodal import multimodal, text_and_image
from tests.composer.training.runs import RECIPE, SPEC, VOCABULARY, run


@pytest.mark.parametrize(("family", "text_only"), [("qwen3_next", False), ("gemma3", False), ("gemma3", True)])
def test_new_sources_are_built_distilled_and_generate(
    family: str, text_only: bool, teacher: Path, texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COMPOSER_CACHE", str(tmp_path / "cache"))
    source = multimodal(family, vocab_size=VOCABULARY) if family == "gemma3" else small(family, vocab_size=VOCABULARY)
    source.save_pretrained(tmp_path / "source")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(teacher / name, tmp_path / "source" / name)
    spec = {**SPEC, "recipe": RECIPE}
    composer.build_folder(spec, tmp_path / "source", tmp_path / "student", text_only=text_only)
    few = ("recipe.transfer.steps=2", "recipe.transfer.warmup=0", "recipe.finetune.steps=2")
    run(tmp_path / "student", tmp_path / "out", texts, *few)
    assert verify(tmp_path / "out").ok
    model, ids = composer.load(tmp_path / "out"), torch.arange(12)[None] % 14 + 3
    written = model.generate(ids, max_new_tokens=3, do_sample=False, pad_token_id=0)
    assert written.shape[1] > ids.shape[1]
    merge_adapters(tmp_path / "out", tmp_path / "merged")
    composer.load(tmp_path / "merged").save_pretrained(tmp_path / "again")
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "again").eval()
    with torch.no_grad():
        torch.testing.assert_close(again(ids).logits, model(ids).logits, rtol=0, atol=1e-4)
    if family == "gemma3" and not text_only:
        inputs = text_and_image(family, source)
        assert model.generate(**inputs, max_new_tokens=3).shape[1] > inputs["input_ids"].shape[1]
        seen = {name: tensor for name, tensor in source.state_dict().items() if "vision" in name or "projector" in name}
        assert seen
        assert all(torch.equal(model.state_dict()[name], tensor) for name, tensor in seen.items())
