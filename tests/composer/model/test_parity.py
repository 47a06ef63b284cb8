"""A softmax student equals its source for every variant of Llama, and so does a LoLCATs student if its window never overflows."""

from __future__ import annotations

import math

import pytest
import torch
from transformers import LlamaForCausalLM

import composer
from blocks.flow import Tokens
from composer.errors import SpecError
from composer.model.attention import ModelCall
from tests.checkpoints import logits
from tests.composer.model.models import VARIANTS, llama, student, tokens


@pytest.mark.parametrize("variant", VARIANTS)
def test_softmax_students_equal_their_source(variant: str) -> None:
    source, ids = llama(**VARIANTS[variant]), tokens(2, 90)
    built = composer.build("softmax", source)
    torch.testing.assert_close(logits(built, ids), logits(source, ids), rtol=0, atol=1e-9)
    narrow, narrow_source = built.float(), source.float()
    torch.testing.assert_close(logits(narrow, ids), logits(narrow_source, ids), rtol=0, atol=5e-5)


@pytest.mark.parametrize("variant", VARIANTS)
def test_greedy_text_equals_that_of_the_source(variant: str) -> None:
    source = llama(**VARIANTS[variant])
    built, ids = composer.build("softmax", source), tokens(2, 9)
    settings = {"max_new_tokens": 40, "do_sample": False, "eos_token_id": None}
    assert torch.equal(built.generate(ids, **settings), source.generate(ids, **settings))


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_window_for_all_tokens_equals_softmax_with_any_weight(variant: str) -> None:
    source, ids = llama(**VARIANTS[variant]), tokens(2, 60)
    built = student("lolcats", "head.memory.0.size=60", source=source)
    torch.testing.assert_close(logits(built, ids), logits(source, ids), rtol=0, atol=1e-9)


def lolcats_attention(hidden: torch.Tensor, attention: torch.nn.Module, rotate, size: int) -> torch.Tensor:
    """Compute LoLCATs over the whole T × T matrix: exp(q·k/√d)·σ(w) inside the window, φ(q)·φ(k) before it."""
    head_dim, batch, length = attention.head_dim, *hidden.shape[:2]
    shape = (batch, length, -1, head_dim)
    query, key, value = (
        projection(hidden).view(shape).transpose(1, 2) for projection in (attention.q_proj, attention.k_proj, attention.v_proj)
    )
    factor = query.shape[1] // key.shape[1]
    query, key, value = rotate(query), rotate(key).repeat_interleave(factor, 1), value.repeat_interleave(factor, 1)
    part = attention.composed.get_submodule("head")
    weight = part.get_parameter("window.weight").sigmoid()[:, None, None]

    def features(states: torch.Tensor, matrix: torch.Tensor) -> torch.Tensor:
        mapped = torch.einsum("bhtd,hdf->bhtf", states, matrix)
        return torch.cat([mapped.softmax(-1), (-mapped).softmax(-1)], -1).clamp(min=1e-12)

    near = (query @ key.mT / math.sqrt(head_dim)).exp() * weight
    far = (
        features(query, part.get_parameter("feature_map.query_weight"))
        @ features(key, part.get_parameter("feature_map.key_weight")).mT
    )
    back = torch.arange(length)[:, None] - torch.arange(length)
    weights = torch.where((back >= 0) & (back < size), near, torch.where(back >= size, far, 0.0))
    output = weights / weights.sum(-1, keepdim=True) @ value
    return attention.o_proj(output.transpose(1, 2).flatten(2))


@pytest.mark.parametrize("variant", VARIANTS)
def test_lolcats_equals_its_formula_over_the_whole_matrix(variant: str) -> None:
    source: LlamaForCausalLM = llama(**VARIANTS[variant])
    built, size = student("lolcats", "head.memory.0.size=7", source=source), 7
    hidden = torch.randn(2, 50, 64, dtype=torch.float64)
    cos, sin = source.model.rotary_emb(hidden, torch.arange(50)[None])

    def rotate(states: torch.Tensor) -> torch.Tensor:
        first, second = states.chunk(2, -1)
        return states * cos + torch.cat((-second, first), -1) * sin

    attention, model_call = built.model.layers[1].self_attn, ModelCall(Tokens(torch.arange(50).expand(2, -1)), "torch")
    with torch.no_grad():
        answers = attention.attention_output(hidden, model_call, {})
        torch.testing.assert_close(answers, lolcats_attention(hidden, attention, rotate, size), rtol=0, atol=1e-10)


def test_softmax_and_a_window_for_all_tokens_in_one_layer_equal_the_source() -> None:
    """Softmax in heads 0 and 1, and LoLCATs with a window for all tokens in heads 2 and 3, equal the source."""
    mixed = {
        "compose": 1,
        "name": "mixed",
        "heads": {
            "exact": {"memory": ["full"]},
            "near": {
                "feature_map": "hedgehog",
                "memory": [{"kind": "window", "size": 40, "weight": "learned"}, "state"],
            },
        },
        "layers": [{"at": "all", "use": [{"head": "exact", "heads": 2}, {"head": "near", "heads": 2}]}],
    }
    source, ids = llama(), tokens(2, 40)
    torch.testing.assert_close(logits(composer.build(mixed, source), ids), logits(source, ids), rtol=0, atol=1e-9)


def test_heads_that_no_layer_uses_are_refused() -> None:
    with pytest.raises(SpecError, match="no layer uses this head"):
        composer.build({"compose": 1, "name": "x", "head": {"memory": ["full"]}, "heads": {"y": {"memory": ["full"]}}}, llama())
