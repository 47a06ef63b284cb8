"""A student answers, trains and decodes without working kernels: a missing or broken package, a removed kernel, an unsupported
shape. The next form gives the usual result, with one warning per kernel.
"""

from __future__ import annotations

import re
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

import blocks.kernels
import composer
from blocks.kernels import FLASH_LINEAR_ATTENTION, TRITON_PACKAGE
from composer.system.notices import FallsBack
from tests.composer.graph.backends import forget
from tests.interpreter import count_launches

TEACHER = Path(__file__).parents[3] / "examples" / "teacher"
TEXT = torch.randint(3, 500, (1, 13), generator=torch.Generator().manual_seed(0))
PROMPT = 11
STUDENTS = {"fla": ("gla", ()), "triton": ("lolcats", ("head.memory.0.size=5",))}
PACKAGES = {"fla": FLASH_LINEAR_ATTENTION, "triton": TRITON_PACKAGE}
KERNELS = {
    "fla": {"chunk_gla": "fla.ops.gla", "fused_recurrent_gla": "fla.ops.gla"},
    "triton": {name: f"blocks.fused.{module}" for name, module in (
        ("shares", "hedgehog"), ("attend_jointly", "joint"), ("with_mass", "window"), ("step_once", "window_and_state_step")
    )},
}  # fmt: skip
"""That answer in training, in a prefill and in decode, or in the place of one of these, and where they stand."""


@pytest.fixture(autouse=True)
def forget_failures(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Clear the failures and compiled programs of earlier tests."""
    monkeypatch.setattr(blocks.kernels, "_failed", {})
    forget()
    yield
    forget()


def answers(backend: str, runs_on: str) -> list[torch.Tensor]:
    """Return the logits of a text, of a prefill and of decode after it, and all gradients."""
    spec, overrides = STUDENTS[backend]
    model = composer.build(spec, TEACHER, overrides=overrides)
    model.set_backend(runs_on)
    logits = model(TEXT).logits
    logits.logsumexp(-1).sum().backward()
    with torch.no_grad():
        first = model(TEXT[:, :PROMPT], use_cache=True)
        steps = [model(TEXT[:, t : t + 1], past_key_values=first.past_key_values).logits for t in range(PROMPT, TEXT.shape[1])]
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    assert len(gradients) > 10
    return [logits.detach(), first.logits, *steps, *gradients]


def broken_at_import(backend: str, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Replace the package by one that raises on import, and forget its imported modules."""
    (folder / backend).mkdir()
    (folder / backend / "__init__.py").write_text("raise RuntimeError('no driver for this device')", encoding="utf-8")
    on_it = "blocks.fused." if backend == "triton" else "fla."
    for name in [name for name in sys.modules if name.split(".")[0] == backend or name.startswith(on_it)]:
        if name != "blocks.fused.arguments":  # which takes no Triton
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(folder)


def too_large(*_: Any, **__: Any) -> None:
    raise AssertionError("K is too large")


@pytest.mark.parametrize("backend", STUDENTS)
@pytest.mark.parametrize("broken", ["import", "removed", "refused", "missing"])
def test_students_run_on_pytorch_forms_with_one_warning_per_failed_kernel(
    backend: str, broken: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted, kernels = answers(backend, "torch"), KERNELS[backend]
    # One that is not there stands for all of the part that calls it.
    gone = [(name, module) for name, module in kernels.items() if backend == "triton" or name == "chunk_gla"]
    if broken == "import":
        broken_at_import(backend, monkeypatch, tmp_path)
        expected_messages = [rf"{module} has no {name} that could be imported \(RuntimeError: no driver" for name, module in gone]
    elif broken == "removed":
        for name, module in kernels.items():
            monkeypatch.delattr(f"{module}.{name}")
        expected_messages = [rf"{module} has no {name} that could be imported \(AttributeError" for name, module in gone]
    elif broken == "refused":
        for name, module in kernels.items():
            monkeypatch.setattr(f"{module}.{name}", too_large)
        expected_messages = [rf"{name} refused \(AssertionError: K is too large\)" for name in kernels]
    else:
        version_message = f"{PACKAGES[backend].name} 0.5 is installed, and a later one is needed"
        monkeypatch.setattr(blocks.kernels, "_missing", lambda _: version_message)
        expected_messages = [re.escape(version_message)]
    with warnings.catch_warnings(record=True) as warned, count_launches() as answered:
        warnings.simplefilter("always")
        for _ in range(2):
            for actual, other in zip(answers(backend, backend), wanted, strict=True):
                torch.testing.assert_close(actual, other, rtol=0, atol=1e-4 * max(other.abs().max().item(), 1e-6))
    assert not answered
    messages = [str(warning.message) for warning in warned if issubclass(warning.category, FallsBack)]
    assert len(messages) == len(expected_messages), messages
    assert all(sum(bool(re.match(of_one, message)) for message in messages) == 1 for of_one in expected_messages), messages
