"""`compose generate` continues a prompt, greedily as the model itself does, or sampled from a seed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoTokenizer

import composer
from composer.errors import ComposerError
from composer.generation.writers import check_logits
from composer.model.modeling import ComposedForCausalLM
from composer.reporting.words import size
from tests.composer.cli.conftest import Compose

PROMPT = "once upon a time there was a cat"


def generated(compose: Compose, student: Path, *arguments: object) -> dict[str, Any]:
    result = compose("generate", student, "--prompt", PROMPT, "--max-new-tokens", 8, "--json", *arguments)
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


def test_greedy_text_equals_the_argmax_without_a_cache(compose: Compose, student: Path) -> None:
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


def test_every_token_may_be_drawn(student: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sampling uses all tokens, and not the fifty most likely ones, which is transformers' default."""

    def few(top_k: int, **_: object) -> None:
        raise AssertionError(f"the likeliest {top_k} are drawn from")

    monkeypatch.setattr("transformers.generation.utils.TopKLogitsWarper", few)
    assert composer.generate(student, PROMPT, max_new_tokens=2, temperature=1.0).new_tokens


@pytest.mark.parametrize("temperature", [0.0, 2.0])
def test_the_callers_random_state_is_unchanged(student: Path, temperature: float) -> None:
    torch.manual_seed(5)
    wanted = torch.rand(3)
    torch.manual_seed(5)
    composer.generate(student, PROMPT, max_new_tokens=4, temperature=temperature, seed=1)
    assert torch.equal(torch.rand(3), wanted)


def test_the_prompt_may_come_from_stdin(compose: Compose, student: Path) -> None:
    result = compose("generate", student, "--prompt", "-", "--max-new-tokens", 8, "--json", stdin=PROMPT)
    assert json.loads(result.stdout)["text"] == generated(compose, student)["text"]


def test_invalid_arguments_are_refused(compose: Compose, student: Path, teacher: Path) -> None:
    def message(*arguments: object) -> str:
        result = compose("generate", *arguments)
        assert result.exit_code == 2
        assert result.stdout == ""
        return result.stderr

    assert "no tokens" in message(student, "--prompt", "")
    assert "--temperature" in message(student, "--prompt", PROMPT, "--top-p", 0.5)
    assert 'no device "tpu"' in message(student, "--prompt", PROMPT, "--device", "tpu")
    shutil.copytree(student, "bare", ignore=shutil.ignore_patterns("tokenizer*"))
    assert "bare has no tokenizer" in message("bare", "--prompt", PROMPT)


def test_more_tokens_than_there_are_positions(compose: Compose, teacher: Path) -> None:
    trunk = "{width: 32, layers: 1, heads: 4, vocabulary: 64, embedding: learned, length: 16}"
    Path("short.yaml").write_text(f"compose: 1\nname: short\nextends: lawcat\ntrunk: {trunk}\n")
    assert compose("build", "short.yaml", "--fresh", "-o", "short", "--tokenizer", teacher).exit_code == 0
    result = compose("generate", "short", "--prompt", PROMPT, "--max-new-tokens", 16)
    assert result.exit_code == 2
    assert "short has learned 16 positions, too few for 24 tokens" in " ".join(result.stderr.split())
    assert "generation_config" not in result.stderr


def test_models_of_transformers_generate_as_in_transformers(compose: Compose, teacher: Path) -> None:
    result = compose("generate", teacher, "--prompt", PROMPT, "--max-new-tokens", 4)
    assert result.exit_code == 0
    assert result.stdout.startswith(PROMPT)


def test_invalid_utf_8_in_prompts_is_refused(compose: Compose, student: Path) -> None:
    """Invalid UTF-8 in argv and stdin is rejected."""
    result = compose("generate", student, "--prompt", "caf\udce9")
    assert result.exit_code == 2
    assert "the prompt in --prompt is not in the terminal's encoding, from character 4 on" in " ".join(result.stderr.split())
    result = compose("generate", student, "--prompt", "-", stdin=b"caf\xe9")
    assert result.exit_code == 2
    assert "on stdin is not in the terminal's encoding" in " ".join(result.stderr.split())


def test_bidirectional_models_are_refused(compose: Compose, teacher: Path) -> None:
    result = compose("build", "latte-bidirectional", "--from", teacher, "-o", "both")
    words = " ".join(result.stdout.split())
    assert "Note: The spec is bidirectional, so this model cannot generate" in words
    assert "Note: Attention is bidirectional from now on" in words
    result = compose("generate", "both", "--prompt", PROMPT)
    assert (result.exit_code, result.stdout) == (2, "")
    (line,) = result.stderr.splitlines()
    assert line.startswith("both is bidirectional: ")
    assert "pipeline_tag" not in Path("both/README.md").read_text()


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
        RuntimeError(
            "[enforce fail at alloc_cpu.cpp:127] . DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes."
        ),
        RuntimeError("Storage size calculation overflowed with sizes=[1, 4294967296]"),
    ],
    ids=["python", "cuda", "cpu", "overflow"],
)
def test_out_of_memory_errors_name_the_bytes_of_the_state(
    compose: Compose, student: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(ComposedForCausalLM, "generate", full)
    result = compose("generate", student, "--prompt", PROMPT, "--max-new-tokens", 8)
    assert (result.exit_code, result.stdout) == (2, "")
    state = json.loads(compose("explain", "lolcats", "--from", student, "--seq", 16, "--json").stdout)["state_bytes"]
    assert f"out of memory: at 16 tokens the state alone needs {size(state)}; " in result.stderr
    assert result.stderr.endswith("build it with a smaller `size` of `window`, which is 64\n")


def test_other_errors_are_raised(compose: Compose, student: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise RuntimeError("a shape is wrong")

    monkeypatch.setattr(ComposedForCausalLM, "generate", broken)
    assert str(compose("generate", student, "--prompt", PROMPT).exception) == "a shape is wrong"


def test_what_is_built_from_nothing(compose: Compose) -> None:
    """Models without a tokenizer and classifiers are refused, since they cannot continue a text."""
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


def test_generation_settings_of_the_source_are_ignored(compose: Compose, student: Path) -> None:
    """The source's generation settings, such as beams, are ignored."""
    expected = generated(compose, student)["text"]
    shutil.copytree(student, "greedy")
    settings = {
        "num_beams": 100_000,
        "num_return_sequences": 9,
        "min_new_tokens": 10**9,
        "no_repeat_ngram_size": 1,
        "max_length": 3,
    }
    Path("greedy/generation_config.json").write_text(json.dumps({"eos_token_id": 2} | settings))
    assert generated(compose, Path("greedy"))["text"] == expected


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_logits_that_are_not_finite_are_refused(value: float) -> None:
    """They would choose token 0, which may be no text."""
    with pytest.raises(ComposerError, match="the logits after 3 tokens are not finite, so no token can be chosen"):
        check_logits(torch.zeros(1, 3), torch.tensor([[0.0, value]]))
    assert check_logits(torch.zeros(1, 3), masked := torch.tensor([[0.0, -float("inf")]])) is masked
