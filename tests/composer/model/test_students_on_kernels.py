"""Whole students, saved and loaded as transformers does, are the same on fla's kernels and on this project's own, in Triton's
interpreter, as on PyTorch's forms: the logits of a text, of a prefill and of decode behind it, and the gradients of all parameters.

The text is of an odd length, longer than a chunk of fla's and than several windows; two query heads share a key head.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

import composer
from tests.checkpoints import llama_model
from tests.interpreter import count_launches, nothing_refused

SIZES = {"vocab_size": 97, "hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 2, "num_key_value_heads": 1}
TEXT = torch.randint(3, 97, (1, 67), generator=torch.Generator().manual_seed(0))
PROMPT, DECODED = 21, 26
"""Decode goes on from there over the beginning of a window's chunk."""
CLOSE = 1e-4
"""Of the largest number."""
SMALL = "head.memory.0.size=8"
STUDENTS = {
    "lawcat": (),
    "lolcats": (SMALL,),
    "lola": (SMALL, "head.memory.1.size=6"),
    "gated-delta": (),
    "latte-macchiato": (SMALL,),
    "forgetting": (),
    "alternating-delta": ("heads.near.memory.0.size=8",),
}
LAYERS = {"alternating-delta": 2}
"""The number of layers of the students whose layers differ; the others have one."""
DELTA = {"causal_conv1d", "chunk_gated_delta_rule", "fused_recurrent_gated_delta_rule"}
ANSWERS: dict[tuple[str, str], set[str]] = {
    ("lawcat", "fla"): {"causal_conv1d", "chunk_gla", "fused_recurrent_gla"},
    ("lawcat", "triton"): {"shares"},
    ("lolcats", "fla"): {"chunk_simple_gla", "fused_recurrent_simple_gla"},
    ("lolcats", "triton"): {"shares", "attend_jointly", "step_once"},
    ("lola", "fla"): {"chunk_simple_gla"},
    ("lola", "triton"): {"shares", "walk_pairs", "with_mass"},
    ("gated-delta", "fla"): DELTA,
    ("gated-delta", "triton"): set(),
    ("latte-macchiato", "fla"): {"chunk_hgrn", "parallel_attn", "fused_additive_gate", "chunk_gla"},
    ("latte-macchiato", "triton"): set(),
    ("forgetting", "fla"): {"parallel_forgetting_attn"},
    ("forgetting", "triton"): set(),
    ("alternating-delta", "fla"): {"parallel_attn", *DELTA},
    ("alternating-delta", "triton"): {"shares"},
}
"""The kernels that answer: what else there is in a student runs on PyTorch's forms, as does all of one that has none. LoLA's
gradients on triton come of a window's kernel and of those: what walks its chunks goes forward alone."""


@dataclass(frozen=True)
class Answers:
    text: Tensor
    prefill: Tensor
    decode: Tensor
    gradients: dict[str, Tensor]


def answers(folder: Path, backend: str) -> Answers:
    model = AutoModelForCausalLM.from_pretrained(folder)
    model.set_backend(backend)
    with nothing_refused():
        logits = model(TEXT).logits
        logits.logsumexp(-1).sum().backward()
        with torch.no_grad():
            first = model(TEXT[:, :PROMPT], use_cache=True)
            steps = [model(TEXT[:, t : t + 1], past_key_values=first.past_key_values).logits for t in range(PROMPT, DECODED)]
    gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
    assert None not in gradients.values()
    return Answers(logits.detach(), first.logits, torch.cat(steps, dim=1), gradients)


@pytest.fixture(scope="module")
def student(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Path, Answers]]:
    """The folder of a student with fresh parameters away from their start, and the results of PyTorch's forms."""

    @cache
    def saved(spec: str) -> tuple[Path, Answers]:
        folder, generator = tmp_path_factory.mktemp(spec), torch.Generator().manual_seed(3)
        source = llama_model(num_hidden_layers=LAYERS.get(spec, 1), initializer_range=0.2, **SIZES)
        model = composer.build(spec, source, overrides=STUDENTS[spec])
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if ".composed." in name:
                    parameter += 0.2 * torch.randn(parameter.shape, generator=generator)
        model.save_pretrained(folder)
        return folder, answers(folder, "torch")

    return saved


def close(actual: Tensor, wanted: Tensor) -> None:
    torch.testing.assert_close(actual, wanted, rtol=0, atol=CLOSE * wanted.abs().max().item())


@pytest.mark.parametrize(("spec", "backend"), ANSWERS)
def test_students_on_kernels_equal_students_on_pytorch_forms(
    spec: str, backend: str, student: Callable[[str], tuple[Path, Answers]]
) -> None:
    folder, wanted = student(spec)
    close(torch.cat((wanted.prefill, wanted.decode), dim=1), wanted.text[:, :DECODED])
    with count_launches() as kernels:
        actual = answers(folder, backend)
    assert set(kernels) == ANSWERS[spec, backend]
    close(actual.text, wanted.text)
    close(actual.prefill, wanted.prefill)
    close(actual.decode, wanted.decode)
    for name, gradient in wanted.gradients.items():
        close(actual.gradients[name], gradient)


def test_every_student_is_tested_on_both_backends() -> None:
    assert ANSWERS.keys() == {(spec, backend) for spec in STUDENTS for backend in ("fla", "triton")}
