"""`compose generate` goes on from a prompt: greedily as the model itself would, or sampled from a seed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import torch
from transformers import AutoTokenizer

import composer
from tests.composer.cli.conftest import Compose

PROMPT = "once upon a time there was a cat"


def generated(compose: Compose, student: Path, *arguments: object) -> dict[str, Any]:
    result = compose("generate", student, "--prompt", PROMPT, "--max-new-tokens", 8, "--json", *arguments)
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


def test_greedy(compose: Compose, student: Path) -> None:
    answer = generated(compose, student)
    tokenizer = AutoTokenizer.from_pretrained(student)
    ids = tokenizer(PROMPT, return_tensors="pt")["input_ids"]
    model = composer.load(student)
    for _ in range(8):
        with torch.no_grad():
            ids = torch.cat((ids, model(ids).logits[:, -1:].argmax(-1)), dim=1)
    assert answer["text"] == tokenizer.decode(ids[0], skip_special_tokens=True)
    assert answer["new_text"] == tokenizer.decode(ids[0, -8:], skip_special_tokens=True)
    assert (answer["prompt_tokens"], answer["new_tokens"]) == (8, 8)


def test_text_is_the_whole_text(compose: Compose, student: Path) -> None:
    result = compose("generate", student, "--prompt", PROMPT, "--max-new-tokens", 8)
    assert result.exit_code == 0
    assert result.stdout == generated(compose, student)["text"] + "\n"


def test_a_seed_is_repeatable(compose: Compose, student: Path) -> None:
    def sampled(seed: int, *arguments: object) -> str:
        return generated(compose, student, "--temperature", 2, "--seed", seed, "--max-new-tokens", 16, *arguments)["text"]

    assert sampled(1) == sampled(1)
    assert len({sampled(seed) for seed in range(4)}) > 1
    assert sampled(1, "--top-p", 0.001) == sampled(2, "--top-p", 0.001)


def test_the_prompt_may_come_from_stdin(compose: Compose, student: Path) -> None:
    result = compose("generate", student, "--prompt", "-", "--max-new-tokens", 8, "--json", stdin=PROMPT)
    assert json.loads(result.stdout)["text"] == generated(compose, student)["text"]


def test_mistakes(compose: Compose, student: Path, teacher: Path) -> None:
    def message(*arguments: object) -> str:
        result = compose("generate", *arguments)
        assert result.exit_code == 2
        assert result.stdout == ""
        return result.stderr

    assert "no tokens" in message(student, "--prompt", "")
    assert "not a composed model" in message(teacher, "--prompt", PROMPT)
    assert "--temperature" in message(student, "--prompt", PROMPT, "--top-p", 0.5)
    assert 'no device "tpu"' in message(student, "--prompt", PROMPT, "--device", "tpu")
    shutil.copytree(student, "bare", ignore=shutil.ignore_patterns("tokenizer*"))
    assert "bare has no tokenizer" in message("bare", "--prompt", PROMPT)


def test_what_is_built_from_nothing(compose: Compose) -> None:
    """Without a tokenizer, or as a classifier, it cannot go on from a text, and says so."""
    Path("whole.yaml").write_text(
        "compose: 1\nname: whole\nextends: lawcat\ntrunk: {width: 32, layers: 2, heads: 4, vocabulary: 64}\n"
    )
    for name, settings, message in (
        ("bare", [], "bare has no tokenizer, so it can read no prompt"),
        ("judge", ["--set", "trunk.labels=2"], "judge is a classifier"),
    ):
        assert compose("build", "whole.yaml", "--fresh", "-o", name, *settings).exit_code == 0
        result = compose("generate", name, "--prompt", PROMPT)
        assert (result.exit_code, result.stdout) == (2, "")
        assert message in result.stderr
