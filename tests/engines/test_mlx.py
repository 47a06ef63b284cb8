"""MLX reads a native folder of Qwen3.5 as it is, and computes the student's logits and text. ``make engines-test`` installs MLX
into a separate environment.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("mlx.core", reason="MLX is not installed: make engines-test")

import mlx.core as mlx
import torch
from mlx_lm.models.cache import make_prompt_cache
from mlx_lm.utils import load_model

import composer
from tests.composer.exporting.models import randomised

TEACHER = Path(__file__).parents[2] / "examples" / "teacher"
CLOSE = 1e-5
"""The largest difference of logits, as a share of the largest one."""
PROMPT, TEXT = 32, 64
"""Tokens before the generated ones, and generated tokens."""


def exported(folder: Path, target: str, overrides: list[str]) -> tuple[Any, Path]:
    """Return a student with random heads, and its folder as a class of transformers."""
    spec = composer.new(folder / "spec", target=target, source=TEACHER)
    model = randomised(composer.build(spec, TEACHER, overrides=overrides))
    model.save_pretrained(folder / "student")
    composer.export(folder / "student", folder / "native", native=True, target=target)
    return model, folder / "native"


@pytest.mark.parametrize("overrides", [[], ["heads.kept.output={kind: gate, bias: false}", "head.conv.kernel=3"]])
def test_a_qwen3_5_has_the_student_s_logits_and_text(overrides: list[str], tmp_path: Path) -> None:
    mlx.set_default_device(mlx.cpu)
    model, folder = exported(tmp_path, "qwen3_5", overrides)
    own, _ = load_model(folder, model_config={"model_type": "qwen3_5"})
    tokens = torch.randint(3, model.config.vocab_size, (2, 60), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        expected = model(tokens).logits
    actual = torch.tensor(own(mlx.array(tokens.tolist())).tolist())
    torch.testing.assert_close(actual, expected, rtol=0, atol=CLOSE * float(expected.abs().max()))
    settings = {"max_new_tokens": TEXT, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    text = model.generate(tokens[:1, :PROMPT], **settings)[0, PROMPT:].tolist()
    assert greedy(own, tokens[0, :PROMPT].tolist()) == text


def greedy(model: Any, prompt: list[int]) -> list[int]:
    """Return the greedy text after a prompt that is read in two pieces."""
    cache, text = make_prompt_cache(model), []
    model(mlx.array([prompt[:17]]), cache=cache)
    logits = model(mlx.array([prompt[17:]]), cache=cache)
    for _ in range(TEXT):
        text.append(int(mlx.argmax(logits[0, -1])))
        logits = model(mlx.array([text[-1:]]), cache=cache)
    return text


@pytest.mark.parametrize("target", ["ministral", "qwen3_next", "granitemoehybrid"])
def test_other_classes_are_refused(target: str, tmp_path: Path) -> None:
    """docs/engines.md lists them as refused: a class that MLX reads from now on has to be compared."""
    _, folder = exported(tmp_path, target, [])
    with pytest.raises((TypeError, ValueError)):
        load_model(folder)
