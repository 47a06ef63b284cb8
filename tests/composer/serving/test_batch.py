"""Rows that are generated together have the texts that ``generate`` writes for each alone, whatever the model's memories are."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

import composer
from composer.model.mixers import serve_cpu
from composer.serving import batch
from composer.serving.batch import DecodingGroup
from composer.serving.engine import Job, TextRow, WrittenPiece
from composer.serving.requests import CompletionRequest, RequestError
from tests.composer.hosts.families import small
from tests.composer.hosts.multimodal import multimodal
from tests.composer.serving.conftest import TEACHER
from tests.composer.serving.test_engine_text import BYTES

LENGTHS = (1, 40, 3, 70, 5)
SPECS = ("lolcats", "lawcat", "lola", "softmax", "latte-macchiato", "gated-deltanet", "gdn-hybrid", "window")
FAMILIES = {**dict.fromkeys(("llama", "gpt2", "gemma2", "falcon_h1", "lfm2"), LENGTHS), "minimax": (9, 9, 9, 9, 9)}
"""By family, the lengths of prompts. transformers' own MiniMax computes something else with padding."""


class Written:
    """Collects the tokens of a job's texts, as its rows draw them."""

    def __init__(self, prompts: Sequence[Sequence[int]], most: int = 8, **fields: Any) -> None:
        self.tokens: dict[int, list[int]] = {}
        request = CompletionRequest(model="m", prompt=["a"], logprobs=0, **{"temperature": 0, **fields})
        self.job = Job(request, prompts, most, frozenset(), False, self.deliver)

    def deliver(self, piece: WrittenPiece | RequestError) -> None:
        assert isinstance(piece, WrittenPiece)
        self.tokens.setdefault(piece.index, []).extend(entry.token for entry in piece.logprobs)

    def rows(self) -> list[TextRow]:
        return [TextRow(self.job, index, BYTES, frozenset()) for index in range(self.job.rows)]


def run(model: Any, *jobs: Written) -> None:
    """Generate for jobs in one group."""
    group = DecodingGroup(model, [row for job in jobs for row in job.rows()])
    with torch.no_grad():
        while group.rows:
            group.advance()


def prompts_for(model: Any, lengths: Sequence[int] = LENGTHS) -> list[list[int]]:
    generator = torch.Generator().manual_seed(3)
    vocabulary = model.get_input_embeddings().weight.shape[0]
    return [torch.randint(3, vocabulary, (length,), generator=generator).tolist() for length in lengths]


def generated(model: Any, prompt: list[int], most: int = 8) -> list[int]:
    """Return the new tokens of transformers' ``generate``, for a prompt alone."""
    ids = torch.tensor([prompt])
    text = model.generate(
        input_ids=ids, attention_mask=torch.ones_like(ids), max_new_tokens=most, do_sample=False, eos_token_id=None
    )
    return text[0, len(prompt) :].tolist()


def check_model(model: Any, monkeypatch: pytest.MonkeyPatch, lengths: Sequence[int] = LENGTHS) -> None:
    monkeypatch.setattr(batch, "PIECE", 64)  # with 5 prompts, pieces of 12 tokens
    prompts = prompts_for(model, lengths)
    texts = [Written([prompt], most) for prompt, most in zip(prompts, (8, 2, 5, 8, 1), strict=True)]
    run(model, *texts)
    for prompt, text in zip(prompts, texts, strict=True):
        assert text.tokens[0] == generated(model, prompt)[: text.job.max_new_tokens]


GROWING = {"softmax", "gdn-hybrid"}
"""Specs with caches that grow, so that groups join only where they happen to have the same length."""


@pytest.mark.parametrize("spec", SPECS)
def test_composed_models_in_a_batch_write_the_text_of_each_prompt_alone(spec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = composer.build(spec, TEACHER)
    check_model(model, monkeypatch)
    check_joined(model, (40, 3), (70, 5), joined=spec not in GROWING)
    check_joined(model, (20, 40), (41, 9), joined=True)  # after 40 tokens and one step


def check_joined(model: Any, first: Sequence[int], second: Sequence[int], *, joined: bool) -> None:
    """Generate for a group, and for another one that begins later and joins it."""
    prompts = prompts_for(model, (*first, *second))
    texts = [Written([prompt], most) for prompt, most in zip(prompts, (5, 8, 6, 8), strict=True)]
    earlier, later = (DecodingGroup(model, [row for text in pair for row in text.rows()]) for pair in (texts[:2], texts[2:]))
    with torch.no_grad():
        for _ in range(3):
            earlier.advance()
        while not later.rows or later.is_reading or not later.rows[0].count:
            assert not earlier.absorb(later)
            later.advance()
        assert earlier.absorb(later) is joined
        for group in (earlier, *([] if joined else [later])):
            while group.rows:
                group.advance()
    for prompt, text in zip(prompts, texts, strict=True):
        assert text.tokens[0] == generated(model, prompt)[: text.job.max_new_tokens]


@pytest.mark.parametrize("family", FAMILIES)
def test_models_of_transformers_write_the_text_of_each_prompt_alone(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = small(family)
    serve_cpu(sys.modules[type(model).__module__])
    check_model(model, monkeypatch, FAMILIES[family])


@pytest.mark.parametrize("family", ["gemma3", "qwen2_5_vl"])
def test_image_models_write_the_text_of_each_prompt_alone(family: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    multimodal(family).save_pretrained(tmp_path)
    check_model(composer.build("lolcats", tmp_path), monkeypatch)


@pytest.fixture(scope="module")
def lolcats() -> Any:
    return composer.build("lolcats", TEACHER)


def test_texts_of_one_prompt_share_its_reading(lolcats: Any) -> None:
    prompts = prompts_for(lolcats)[1:3]
    together = Written(prompts, temperature=1, seed=5, n=3)
    run(lolcats, together)
    assert len({tuple(text) for text in together.tokens.values()}) == 6
    read: list[int] = []
    embeddings = lolcats.get_input_embeddings()
    handle = embeddings.register_forward_pre_hook(lambda _, arguments: read.append(arguments[0].numel()))
    again = Written(prompts, temperature=1, seed=5, n=3)
    run(lolcats, again)
    handle.remove()
    assert again.tokens == together.tokens
    assert read == [2 * 40, *[6] * 7]


def test_a_seeded_text_is_the_same_beside_others(lolcats: Any) -> None:
    prompts = prompts_for(lolcats)
    alone = Written([prompts[1]], temperature=1, seed=9)
    beside = Written([prompts[1]], temperature=1, seed=9)
    others = [Written([prompt], most=3, temperature=2) for prompt in prompts]
    run(lolcats, alone)
    run(lolcats, others[0], beside, *others[1:])
    assert alone.tokens == beside.tokens


def test_rows_of_clients_that_left_are_dropped(lolcats: Any) -> None:
    """While prompts are read, and between two tokens."""
    prompts = prompts_for(lolcats)
    for steps in (0, 1, 3):
        leaves, remains = Written([prompts[3]]), Written([prompts[1]])
        group = DecodingGroup(lolcats, [*leaves.rows(), *remains.rows()])
        with torch.no_grad():
            for _ in range(steps):
                group.advance()
            leaves.job.is_abandoned.set()
            while group.rows:
                group.advance()
        assert remains.tokens[0] == generated(lolcats, prompts[1])
        assert len(leaves.tokens.get(0, [])) <= steps
