"""The training script makes the shipped teacher's shape by default and others by options, and resumes after a stop."""

from __future__ import annotations

import json
import random
import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

ROOT = Path(__file__).parents[2]
SHIPPED = ROOT / "examples" / "teacher"
MODULES = ("model", "progress", "score", "text", "train")
SMALL = ("--layers", "1", "--width", "32", "--mlp", "16")


@pytest.fixture(scope="module")
def script() -> Iterator[ModuleType]:
    """Load train.py and the files beside it, which belong to no package."""
    before = {name: sys.modules.pop(name) for name in MODULES if name in sys.modules}
    sys.path.insert(0, str(SHIPPED))
    try:
        import train  # pyright: ignore[reportMissingImports]

        yield train
    finally:
        sys.path.remove(str(SHIPPED))
        for name in MODULES:
            sys.modules.pop(name, None)
        sys.modules.update(before)


@pytest.fixture
def quick(script: ModuleType, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Use two stages of three steps, and report and save every second step."""
    first, last = script.STAGES[0], script.STAGES[-1]
    stages = (replace(first, steps=3, batch=2), replace(last, steps=3, batch=2, tokens=128, pairs=8))
    monkeypatch.setattr(script, "STAGES", stages)
    monkeypatch.setattr(script, "HARDER_STAGES", (stages[0], replace(stages[1], needles=20, statements=20)))
    for name, value in (("PROBE_SAMPLES", 1), ("FINAL_SAMPLES", 2), ("REPORT_EVERY", 2)):
        monkeypatch.setattr(script, name, value)
    return script


def train_script(script: ModuleType, monkeypatch: pytest.MonkeyPatch, out: Path, *options: str) -> dict[str, Any]:
    """Return the contents of scores.json."""
    monkeypatch.setattr(sys, "argv", ["train.py", "-o", str(out), *options])
    script.main()
    return json.loads((out / "scores.json").read_text(encoding="utf-8"))


def test_the_script_without_options_builds_the_shipped_teacher(script: ModuleType) -> None:
    tokenizer = script.build_tokenizer()
    assert tokenizer.backend_tokenizer.to_str(pretty=True) == (SHIPPED / "tokenizer.json").read_text(encoding="utf-8")
    model = script.build_model(tokenizer, script.STAGES[-1].tokens, script.Sizes())
    shipped = json.loads((SHIPPED / "config.json").read_text(encoding="utf-8"))
    made = json.loads(model.config.to_json_string(use_diff=False))
    for key in set(shipped) - {"architectures", "dtype", "transformers_version"}:
        assert made[key] == shipped[key], key
    assert {name: tensor.shape for name, tensor in model.state_dict().items()} == {
        name: tensor.shape for name, tensor in load_file(SHIPPED / "model.safetensors").items()
    }
    # The harder tasks take nothing from the draws of the others: these texts are those that it was trained on.
    stage, rng = script.STAGES[-1], random.Random(5)
    kind = random.Random(5).choices(("recall", "passkey", "story"), (stage.recall, stage.passkey, stage.story))[0]
    assert kind == rng.choices(script.KINDS, [getattr(stage, kind, 0) for kind in script.KINDS])[0]


def test_the_second_teacher_has_twice_the_parameters_and_qk_norms(script: ModuleType) -> None:
    tokenizer = script.build_tokenizer()
    second = script.build_model(tokenizer, 256, script.Sizes("qwen3", 4, 128, 400))
    assert type(second).__name__ == "Qwen3ForCausalLM"
    assert 1.9 < second.num_parameters() / 474_496 < 2.1
    assert "model.layers.3.self_attn.q_norm.weight" in second.state_dict()
    assert script.build_model(tokenizer, 256, script.Sizes("llama", 8, 64, 160)).config.num_hidden_layers == 8


def test_teachers_of_the_harder_tasks_are_scored_on_every_task(
    quick: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers import AutoModelForCausalLM

    output = train_script(quick, monkeypatch, tmp_path / "second", "--family", "qwen3", "--harder", *SMALL)
    assert set(output["held_out"]) == {"passkey", "recall", "story", "statements", "multikey", "multivalue", "two-needles"}
    assert output["held_out"]["multikey"]["guessing_exact_match"] == 0.25
    assert output["held_out"]["story"]["perplexity"] > 1
    assert output["steps_of_each_stage"] == [3, 3]
    assert output["settings"]["sizes"] == {"family": "qwen3", "layers": 1, "width": 32, "mlp": 16}
    assert type(AutoModelForCausalLM.from_pretrained(tmp_path / "second")).__name__ == "Qwen3ForCausalLM"
    assert not (tmp_path / "second.progress").exists()


def test_stopped_runs_resume_to_the_same_bits(quick: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The result has the same bits after a stop at each saved step."""
    whole = train_script(quick, monkeypatch, tmp_path / "whole", *SMALL)
    score, calls = quick.score, list[int]()

    def stops(*arguments: Any) -> Any:
        if calls.append(1) or len(calls) in (2, 4, 6):
            raise KeyboardInterrupt
        return score(*arguments)

    monkeypatch.setattr(quick, "score", stops)
    for _ in range(3):
        with pytest.raises(KeyboardInterrupt):
            train_script(quick, monkeypatch, tmp_path / "stopped", *SMALL)
    output = train_script(quick, monkeypatch, tmp_path / "stopped", *SMALL)
    first, second = (load_file(tmp_path / name / "model.safetensors") for name in ("whole", "stopped"))
    assert all(torch.equal(first[name], second[name]) for name in first)
    for fact in ("held_out", "steps_of_each_stage", "tokens", "final_training_loss"):
        assert output[fact] == whole[fact], fact


def test_runs_with_other_settings_are_not_resumed(quick: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = quick.build_tokenizer()
    model = quick.build_model(tokenizer, 128, quick.Sizes("llama", 1, 32, 16))
    quick.save(tmp_path / "one.progress", quick.Progress(), {"seed": 1}, model, torch.optim.AdamW(model.parameters()))
    with pytest.raises(SystemExit, match=r"one\.progress is of a training with other settings"):
        train_script(quick, monkeypatch, tmp_path / "one", *SMALL)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--seed", "-1"), "--seed must not be negative"),
        (("--width", "48"), "--width 48 is no multiple of 32"),
        (("--layers", "0"), "must be above 0"),
        (("--family", "mamba"), "invalid choice"),
    ],
)
def test_invalid_options_are_refused(
    options: tuple[str, ...], message: str, quick: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    with pytest.raises(SystemExit):
        train_script(quick, monkeypatch, tmp_path / "none", *options)
    assert message in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("kind", ["multikey", "multivalue", "two-needles"])
def test_only_the_digits_of_the_answer_have_key_weights(kind: str, script: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """All digits of the answer are learned, and not the digits in the text, which cannot be predicted."""
    tokenizer = script.build_tokenizer()
    monkeypatch.setattr(script, "KINDS", (kind,))
    for seed in range(20):
        stage = replace(script.HARDER_STAGES[-1], tokens=200)
        (text,), ids, weights = script.sample(random.Random(seed), tokenizer, stage)
        assert len(ids) == len(weights) <= 201
        learned = [token for token, weight in zip(ids, weights, strict=True) if weight in script.KEY_WEIGHTS]
        assert tokenizer.decode(learned).split() == text.rpartition(" is ")[2].split()
        digits = {ids[place] for place, weight in enumerate(weights) if weight == script.FILLER_WEIGHT}
        assert not any(tokenizer.convert_ids_to_tokens(token).strip("▁").isdigit() for token in digits)
        assert tokenizer.unk_token_id not in ids


@pytest.mark.parametrize("tokens", [48, 64, 128])
def test_only_repeated_keys_of_statements_have_key_weights(
    tokens: int, script: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only keys whose name occurred before are learned."""
    tokenizer = script.build_tokenizer()
    monkeypatch.setattr(script, "KINDS", ("statements",))
    for seed in range(20):
        stage = replace(script.HARDER_STAGES[1], tokens=tokens)
        (text,), ids, weights = script.sample(random.Random(seed), tokenizer, stage)
        assert len(ids) == len(weights) <= tokens
        statements = re.findall(r"(\w+)(?: is)? (\d{5})", text)
        names = len(set(statements))
        assert len({name for name, _ in statements[:names]}) == names in range(2, min(5, len(statements)))
        again = "".join(key for _, key in statements[names:])
        learned = [token for token, weight in zip(ids, weights, strict=True) if weight in script.KEY_WEIGHTS]
        assert "".join(tokenizer.decode(learned).split()) == again


def test_statements_are_scored_by_their_repeated_keys(script: ModuleType) -> None:
    """A model that repeats the text's values scores 1. One that changes a digit of each scores 0."""
    from score import STATEMENTS, statements_accuracy  # pyright: ignore[reportMissingImports]

    tokenizer = script.build_tokenizer()
    texts = [script.statements(random.Random(seed), 64, STATEMENTS[-1:])[0] for seed in range(4)]
    ids = torch.tensor(tokenizer(texts).input_ids)

    class Knowing(torch.nn.Module):
        wrong = ids

        def forward(self, input_ids: torch.Tensor) -> Any:
            following = torch.nn.functional.one_hot(self.wrong.roll(-1, 1), len(tokenizer)).float()
            return type("Output", (), {"logits": following})

    model = Knowing()
    assert statements_accuracy(model, tokenizer, texts) == {"exact_match": 1.0}
    is_first = torch.tensor([tokenizer.convert_ids_to_tokens(token_id)[1:].isdigit() for token_id in range(len(tokenizer))])
    first_told = torch.arange(ids.shape[1]) < 1 + 2 * 12
    model.wrong = torch.where(is_first[ids] & first_told, 0, ids)
    assert statements_accuracy(model, tokenizer, texts) == {"exact_match": 1.0}
    model.wrong = torch.where(is_first[ids] & ~first_told, 0, ids)
    assert statements_accuracy(model, tokenizer, texts) == {"exact_match": 0.0}
