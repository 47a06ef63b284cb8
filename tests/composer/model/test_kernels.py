"""On fla's kernels a whole student answers as on PyTorch's: logits, gradients, decode; and it answers where fla is broken."""

from __future__ import annotations

import re
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

import blocks.kernels
import composer
from composer.graph import program
from composer.graph.program import FallsBack
from tests.composer.graph.backends import forget
from tests.interpreter import nothing_refused

TEACHER = Path(__file__).parents[3] / "examples" / "teacher"
LENGTH, PROMPT = 12, 10
CLOSE = 1e-4
STUDENTS = {
    "lawcat": (),
    "gated-delta": (),
    "gla": (),
    "latte-macchiato": ("head.memory.0.size=5",),
    "lolcats": ("head.memory.0.size=5",),
    "alternating-delta": (),
    "forgetting": (),
}


def student(spec: str, folder: Path) -> Any:
    """Saved and loaded as transformers does, with fresh parameters that are not at their start."""
    composer.build(spec, TEACHER, overrides=STUDENTS[spec]).save_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder)
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.02 * torch.randn(parameter.shape, generator=generator)
    return model


def answered(model: Any, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, dict[str, torch.Tensor]]:
    """Logits, the logits of a prefill and of decode behind it, and all gradients."""
    model.zero_grad()
    logits = model(ids).logits
    logits.logsumexp(-1).sum().backward()
    gradients = {name: parameter.grad.clone() for name, parameter in model.named_parameters() if parameter.grad is not None}
    with torch.no_grad():
        first = model(ids[:, :PROMPT], use_cache=True)
        later = [model(ids[:, t : t + 1], past_key_values=first.past_key_values).logits for t in range(PROMPT, LENGTH)]
    return logits.detach(), torch.cat((first.logits, *later), dim=1), gradients


def close(found: torch.Tensor, wanted: torch.Tensor) -> None:
    torch.testing.assert_close(found, wanted, rtol=0, atol=CLOSE * max(wanted.abs().max().item(), 1e-6))


@pytest.mark.parametrize("spec", STUDENTS)
def test_a_student_is_the_same_on_fla(spec: str, tmp_path: Path) -> None:
    model, ids = student(spec, tmp_path), torch.randint(3, 500, (1, LENGTH))
    model.set_backend("torch")
    logits, decoded, gradients = answered(model, ids)
    close(decoded, logits)
    model.set_backend("fla")
    with nothing_refused():
        found, stepped, others = answered(model, ids)
    close(found, logits)
    close(stepped, logits)
    assert others.keys() == gradients.keys()
    for name, gradient in others.items():
        close(gradient, gradients[name])


def too_large(*_: Any, **__: Any) -> None:
    raise AssertionError("K is too large")


@pytest.mark.parametrize("broken", ["import", "removed", "refused", "missing"])
def test_a_student_answers_where_fla_does_not(broken: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, ids = student("gla", tmp_path), torch.randint(3, 500, (1, LENGTH))
    with torch.no_grad():
        wanted = model(ids).logits
    monkeypatch.setattr(program, "_told", set())
    monkeypatch.setattr(blocks.kernels, "_failed", {})
    if broken == "import":
        monkeypatch.setitem(sys.modules, "fla.ops.gla", None)
        said = r"fla.ops.gla has no chunk_gla that could be imported \(ModuleNotFoundError"
    elif broken == "removed":
        monkeypatch.delattr("fla.ops.gla.chunk_gla")
        said = r"fla.ops.gla has no chunk_gla that could be imported \(AttributeError"
    elif broken == "refused":
        monkeypatch.setattr("fla.ops.gla.chunk_gla", too_large)
        said = r"chunk_gla refused \(AssertionError: K is too large\)"
    else:
        found = "flash-linear-attention 0.5 is installed, and >=0.6,<0.7 is needed"
        monkeypatch.setattr(blocks.kernels, "_missing", lambda package: found)
        said = found
    forget()
    try:
        model = student("gla", tmp_path / "again")
        model.set_backend("fla")
        with warnings.catch_warnings(record=True) as warned, torch.no_grad():
            warnings.simplefilter("always")
            for _ in range(2):
                torch.testing.assert_close(model(ids).logits, wanted, rtol=0, atol=1e-4)
        (only,) = [str(one.message) for one in warned if issubclass(one.category, FallsBack)]
        assert re.match(said, only), only
    finally:
        forget()
