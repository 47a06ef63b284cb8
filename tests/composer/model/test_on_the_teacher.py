"""On the shipped teacher, prefill and decode give the same logits for heads with every kind of state."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

import composer

TEACHER = Path(__file__).parents[3] / "examples" / "teacher"
SPECS = [
    "gated-deltanet", "gdn-hybrid", "kda-hybrid", "deltaproduct", "mamba2", "forgetting", "hypenet", "liger", "lizard", "streaming",
    "rwkv7", "gdn2-hybrid", "mesa", "log-linear", "mamba3", "hydrahead", "retrieval-aware",
]  # fmt: skip
START, LENGTH = 80, 84
"""Beyond the windows of 64."""


@cache
def teacher() -> PreTrainedModel:
    return AutoModelForCausalLM.from_pretrained(TEACHER).double().eval()


@pytest.mark.parametrize("spec", SPECS)
def test_prefill_and_decode_have_the_same_logits(spec: str) -> None:
    model = composer.build(spec, teacher())
    ids = torch.randint(3, 60, (2, LENGTH), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        whole = model(ids).logits
        known = model(ids[:, :START], use_cache=True).past_key_values
        for token in range(START, LENGTH):
            step = model(ids[:, token : token + 1], past_key_values=known)
            known = step.past_key_values
            torch.testing.assert_close(step.logits[:, 0], whole[:, token], rtol=1e-8, atol=1e-8)
    assert whole.isfinite().all()
    assert (whole - teacher()(ids).logits).abs().max() > 1e-3
