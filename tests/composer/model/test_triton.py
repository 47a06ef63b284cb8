"""Students on this project's kernels write the same text as on PyTorch's forms, with left padding, too. Some students that
``test_students_on_kernels.py`` omits train alike.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import composer
from composer.model.modeling import ComposedForCausalLM
from tests.interpreter import count_launches, nothing_refused

TEACHER = Path(__file__).parents[3] / "examples" / "teacher"
SMALL, WINDOWED = ("head.memory.0.size=8",), {"lolcats", "lola"}
CLOSE = 1e-4
"""Of the largest number."""


def student(spec: str, *overrides: str) -> ComposedForCausalLM:
    """A student with fresh parameters away from their start."""
    model = composer.build(spec, str(TEACHER), overrides=(*(SMALL if spec in WINDOWED else ()), *overrides))
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if ".composed." in name:
                parameter += 0.2 * torch.randn(parameter.shape, generator=generator)
    return model.eval()


def close(actual: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=0, atol=CLOSE * expected.abs().max().item())


IDS = torch.randint(3, 500, (1, 40), generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    ("spec", "overrides", "kernels"),
    [
        ("lolcats", ("head.memory.0.shape=terraced", "head.read.scale=row_max"), {"attend_jointly": 2, "shares": 4}),
        ("lizard", ("head.memory.1.size=8",), {"with_mass": 2, "shares": 4}),
        ("streaming", ("head.memory.1.size=8",), {"with_mass": 2}),
    ],
    ids=["its code's", "lizard", "streaming"],
)
def test_logits_and_gradients_on_triton_match_pytorch(spec: str, overrides: tuple[str, ...], kernels: dict[str, int]) -> None:
    model, answers = student(spec, *overrides), []
    for backend in ("torch", "triton"):
        model.set_backend(backend)
        model.zero_grad()
        with nothing_refused(), count_launches() as called:
            logits = model(IDS).logits
            logits.logsumexp(-1).sum().backward()
        slopes = {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}
        answers.append((logits.detach(), slopes))
    (expected, slopes), (actual, others) = answers
    close(actual, expected)
    assert slopes.keys() == others.keys()
    for name, slope in slopes.items():
        close(others[name], slope)
    assert called == kernels


@pytest.mark.parametrize(
    ("spec", "overrides", "kernels"),
    [
        ("lolcats", (), {"attend_jointly": 2, "step_once": 8, "shares": 20}),
        ("lola", ("head.memory.1.size=6",), {"walk_pairs": 10, "shares": 30}),
        ("lawcat", (), {"shares": 20}),
    ],
    ids=["lolcats", "lola", "lawcat"],
)
def test_generated_text_on_triton_equals_that_on_pytorch(spec: str, overrides: tuple[str, ...], kernels: dict[str, int]) -> None:
    """The first of two rows has left padding."""
    model = student(spec, *overrides)
    ids = IDS.view(2, 20)
    mask = torch.ones_like(ids)
    mask[0, :3] = 0
    options = {"attention_mask": mask, "max_new_tokens": 5, "do_sample": False, "eos_token_id": None}
    results = {}
    for backend in ("torch", "triton"):
        model.set_backend(backend)
        with nothing_refused(), count_launches() as called:
            results[backend] = model.generate(ids, **options, output_logits=True, return_dict_in_generate=True)
    assert torch.equal(results["triton"].sequences, results["torch"].sequences)
    for first, other in zip(results["triton"].logits, results["torch"].logits, strict=True):
        close(first, other)
    assert called == kernels
