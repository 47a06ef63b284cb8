"""The texts of the shipped teacher's training are unchanged, and the teacher knows their answers."""

from __future__ import annotations

import hashlib
import random
from typing import Any

import pytest
import torch

from composer.tasks.base import Task
from composer.tasks.passkey import Passkey, five_digits, write_prompt
from composer.tasks.recall import Recall, draw_pairs, draw_queries, text_of
from composer.tasks.stories import story
from composer.tasks.writer import Writer
from tests.composer.tasks.conftest import TEACHER


def passkey(rng: random.Random, writer: Writer) -> str:
    key = five_digits(rng)
    return f"{write_prompt(rng, key, 'plain', rng.randint(68, 300), writer.count)[0]} {key}"


def recall(rng: random.Random, _: Writer) -> str:
    pairs = draw_pairs(rng, rng.randint(2, 32))
    return text_of(pairs + draw_queries(rng, pairs, rng.randint(1, 90)))


TEXTS = {
    "passkey": (passkey, "47ee39fd7c1e0855a120a80feec348776aaaefabcfb4a8d2d9089bdcb03e3fbe"),
    "recall": (recall, "e0c106946a603d05c1b70df6729ca99f19c37806575fbcdb70a083b3afb57712"),
    "stories": (lambda rng, _: story(rng), "bd278367c56026e89dd330c22883e3ea6a49be82d6f57ca431f6e21e9132b057"),
}


@pytest.mark.parametrize("name", sorted(TEXTS))
def test_texts_are_those_that_the_teacher_was_trained_on(name: str, words: Writer) -> None:
    make, wanted = TEXTS[name]
    text = "\n".join(make(random.Random(seed), words) for seed in range(200))
    assert hashlib.sha256(text.encode()).hexdigest() == wanted


@pytest.fixture(scope="module")
def teacher() -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(TEACHER).eval()


@torch.no_grad()
def share_right(model: Any, task: Task, writer: Writer) -> float:
    """Return the share of the answers' tokens that are the model's first choice after the true text."""
    right: list[torch.Tensor] = []
    for sample in task.draw(writer, 256, "evaluation"):
        ids = torch.tensor([sample.ids])
        chosen = model(input_ids=ids).logits[0, :-1].argmax(-1)
        right.append((chosen == ids[0, 1:])[torch.tensor(sample.answer[1:])])
    return torch.cat(right).double().mean().item()


def test_the_shipped_teacher_solves_recall(teacher: Any, words: Writer) -> None:
    assert share_right(teacher, Recall(samples=20), words) > 0.95


@torch.no_grad()
def test_the_shipped_teacher_solves_passkey(teacher: Any, words: Writer) -> None:
    task, scores = Passkey(samples=20), []
    for sample in task.draw(words, 256, "evaluation"):
        prompt = torch.tensor([sample.prompt_ids])
        mask = torch.ones_like(prompt)
        written = teacher.generate(prompt, attention_mask=mask, max_new_tokens=8, do_sample=False)[0, len(sample.prompt_ids) :]
        scores.append(task.score(sample, words.decode(written.tolist())))
    assert sum(scores) / len(scores) > 0.95 - 1e-9
    assert share_right(teacher, task, words) > 0.95
