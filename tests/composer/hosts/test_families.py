"""A softmax student of every family equals its source in every kind of call. Other students can be split, generate, learn and be
loaded.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

import composer
from composer.errors import BuildError
from tests.composer.hosts.families import HYBRIDS, LATER, PASSED, UNLIKE, is_before, small, tokens
from tests.covers import some

pytestmark = pytest.mark.long

LENGTH = 23
CLOSE = 1e-5
SPECS = {
    "lolcats": ["head.memory.0.size=4"],
    "lawcat": [],
    "lola": ["head.memory.0.size=4", "head.memory.1.size=4"],
    "gated-delta": [],
    "latte-macchiato": ["head.memory.0.size=4", "head.memory.1.size=8", "head.mix_input.blocks=4"],
}
PAIRS = {
    "qwen3": ("gated-delta", "lolcats"),
    "gemma2": ("lawcat", "latte-macchiato"),
    "mixtral": ("lola", "gated-delta"),
    "gpt2": ("latte-macchiato", "lolcats"),
    "gpt_neox": ("lawcat", "lola"),
    "phi3": ("lola", "gated-delta"),
    "gpt_oss": ("lolcats", "lawcat", "lola", "latte-macchiato"),
    "deepseek_v2": ("lolcats", "lawcat"),
    "glm4_moe_lite": ("lola", "gated-delta"),
}
"""Two specs for every family and three families or more for every spec. gpt_oss has attention sinks, which every memory has to use;
the delta rule, which has no mass, cannot. `make test` runs its four specs, and the first one of the other families."""


def near(actual: torch.Tensor, wanted: torch.Tensor) -> None:
    """Compare within 1e-5, or 5e-6 of large logits."""
    scale = max(1.0, float(wanted.abs().max()) / 2)
    torch.testing.assert_close(actual, wanted, rtol=0, atol=CLOSE * scale)


def by_token(model: Any, ids: torch.Tensor, first: int) -> torch.Tensor:
    """Return the logits of a cached decode after a prefill of some tokens."""
    answer = model(ids[:, :first], use_cache=True)
    logits = [answer.logits]
    for at in range(first, ids.shape[1]):
        answer = model(ids[:, at : at + 1], past_key_values=answer.past_key_values, use_cache=True)
        logits.append(answer.logits)
    return torch.cat(logits, dim=1)


STRETCHED = {
    "llama: linear": {"rope_type": "linear", "factor": 4.0, "rope_theta": 10000.0},
    "llama: yarn": {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 64, "rope_theta": 10000.0},
    "llama: dynamic": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0},
    "llama: longrope": {"rope_type": "longrope", "rope_theta": 10000.0, "short_factor": [1.5] * 8, "long_factor": [4.0] * 8}
    | {"factor": 4.0, "original_max_position_embeddings": 128},
    "deepseek_v3: yarn": {"rope_type": "yarn", "factor": 8.0, "mscale_all_dim": 1.0, "rope_theta": 10000.0}
    | {"original_max_position_embeddings": 64},
}
"""Positions that the project's own Llama has not: transformers' is the host. Those of DeepSeek scale its logits, too."""


SAVED = ("kimi_linear", "nemotron_h", "qwen3_next")
"""Hybrids with layers of each kind, in folders. test_hybrids.py compares all of them in memory."""


@pytest.mark.parametrize("family", some([*PASSED, *HYBRIDS, *STRETCHED], {*UNLIKE, *SAVED, *STRETCHED}))
@torch.no_grad()
def test_softmax_students_equal_their_source(family: str, tmp_path: Path) -> None:
    more = {"rope_parameters": STRETCHED[family]} if family in STRETCHED else {}
    family = family.partition(":")[0]
    source, ids = small(family, **more), tokens()
    source.save_pretrained(tmp_path / "source")
    if is_before(LATER.get(family, "0")):
        with pytest.raises(BuildError, match="no place for heads in transformers"):
            composer.build_folder("softmax", tmp_path / "source", tmp_path / "built")
        return
    before = {path.name: path.read_bytes() for path in (tmp_path / "source").iterdir()}
    composer.build_folder("softmax", tmp_path / "source", tmp_path / "built")
    built = composer.load(tmp_path / "built")
    wanted = source(input_ids=ids, use_cache=False).logits
    near(built(ids).logits, wanted)
    near(by_token(built, ids, 18), wanted)
    mask = torch.ones_like(ids)
    mask[0, :5] = 0
    padded = source(input_ids=ids, attention_mask=mask, position_ids=(mask.cumsum(1) - 1).clamp(min=0), use_cache=False).logits
    near(built(ids, attention_mask=mask).logits[mask.bool()], padded[mask.bool()])
    places = torch.cat((torch.arange(14), torch.arange(LENGTH - 14)))
    packed = built(ids, position_ids=places.expand(2, -1)).logits
    near(packed[:, 14:], source(input_ids=ids[:, 14:], use_cache=False).logits)
    built.save_pretrained(tmp_path / "again")
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "again").eval()
    assert torch.equal(again(ids).logits, built(ids).logits)
    assert before == {path.name: path.read_bytes() for path in (tmp_path / "source").iterdir()}


@pytest.mark.parametrize(
    ("family", "spec"),
    some(
        [(family, spec) for family, specs in PAIRS.items() for spec in specs],
        [(family, spec) for family in UNLIKE for spec in PAIRS.get(family, ())[: 4 if family == "gpt_oss" else 1]],
    ),
)
def test_students_of_every_family_decode_generate_save_and_train(family: str, spec: str, tmp_path: Path) -> None:
    source, ids = small(family), tokens()
    student = composer.build(spec, source, overrides=["recipe=null", *SPECS[spec]])
    with torch.no_grad():
        whole = student(ids).logits
        near(by_token(student, ids, 17), whole)
        for beams in (1, 2):
            written = student.generate(ids[:, :6], max_new_tokens=4, do_sample=False, num_beams=beams, pad_token_id=0)
            assert written.shape[1] > 6
        student.save_pretrained(tmp_path / "student")
        again = AutoModelForCausalLM.from_pretrained(tmp_path / "student").eval()
        assert torch.equal(again(ids).logits, whole)
    student(input_ids=ids, labels=ids).loss.backward()
    gradients = {name: parameter.grad for name, parameter in student.named_parameters() if ".composed." in name}
    assert all(gradient is not None and bool(gradient.isfinite().all()) for gradient in gradients.values())


@pytest.mark.parametrize("spec", ["softmax", "lolcats"])
@pytest.mark.parametrize("family", ["qwen3", "gemma3_text"])
@torch.no_grad()
def test_autocast_is_close_to_a_float32_model(family: str, spec: str) -> None:
    """Norms of queries and keys stay in float32 under autocast, values and the cache are in bfloat16."""
    model, ids = composer.build(spec, small(family), overrides=["head.memory.0.size=4"] if spec == "lolcats" else []), tokens()
    expected = model.base(ids).last_hidden_state
    with torch.autocast("cpu", dtype=torch.bfloat16):
        answer = model.base(ids[:, :-1], use_cache=True)
        held = answer.past_key_values
        last = model.base(ids[:, -1:], past_key_values=held).last_hidden_state
    actual = torch.cat((answer.last_hidden_state, last), dim=1).float()
    assert (actual - expected).norm() <= 0.05 * expected.norm()
    kinds = {tensor.dtype for name, tensor in held.state(0).tensors.items() if name.endswith((".key", ".value"))}
    assert kinds == {torch.bfloat16}
