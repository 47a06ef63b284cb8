"""The losses of next tokens by fla's kernel, in Triton's interpreter, are -log p, gradients too; elsewhere they are as defined."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import functional

import tests.interpreter  # noqa: F401
from blocks.kernels import Kernel, Refused
from composer.graph.program import FallsBack
from composer.training.losses import ENTROPY, next_token_losses, why_not_fused


def drawn(tokens: int, vocabulary: int) -> tuple[torch.Tensor, torch.Tensor]:
    return 4 * torch.randn(tokens, vocabulary, dtype=torch.float64), torch.randint(vocabulary, (tokens,))


@pytest.mark.parametrize(("tokens", "vocabulary"), [(1, 3), (7, 97), (5, 5000)], ids=["one", "odd", "several blocks"])
def test_the_kernel_is_the_definition(tokens: int, vocabulary: int, monkeypatch: pytest.MonkeyPatch) -> None:
    exact, targets = drawn(tokens, vocabulary)
    exact.requires_grad_()
    weight = torch.rand(tokens, dtype=torch.float64)
    expected = functional.cross_entropy(exact, targets, reduction="none")
    (expected * weight).sum().backward()
    logits = exact.detach().float().requires_grad_()
    assert why_not_fused(logits, "fla") is None
    monkeypatch.setattr(functional, "cross_entropy", _not_called)
    found = next_token_losses(logits, targets, "fla")
    (found * weight.float()).sum().backward()
    assert found.dtype is torch.float32
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5)
    assert logits.grad is not None
    torch.testing.assert_close(logits.grad.double(), exact.grad, rtol=0, atol=1e-6)


def _not_called(*_: Any, **__: Any) -> Any:
    raise AssertionError("the kernel computes it")


@pytest.mark.parametrize("backend", ["auto", "torch", "reference", "triton"])
def test_on_a_cpu_it_is_as_defined(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    logits, targets = drawn(5, 11)
    monkeypatch.setattr(Kernel, "__call__", _not_called)
    found = next_token_losses(logits.float(), targets, backend)
    torch.testing.assert_close(found.double(), functional.cross_entropy(logits, targets, reduction="none"), rtol=1e-5, atol=1e-5)


def test_what_it_does_not_serve_is_as_defined() -> None:
    logits, targets = drawn(5, 11)
    assert why_not_fused(logits, "fla") == "it does not serve float64"
    assert why_not_fused(logits.half(), "fla") == "it does not serve float16"
    assert why_not_fused(logits[:0].float(), "fla") == "there is no token"
    assert next_token_losses(logits[:0].float(), targets[:0], "fla").shape == (0,)
    assert next_token_losses(logits, targets, "fla").dtype is torch.float32


def test_narrow_logits_cost_what_they_say() -> None:
    """No gradient is lost by their dtype: on the way back it is rounded once."""
    logits, targets = drawn(6, 50)
    narrow = logits.bfloat16().requires_grad_()
    found = next_token_losses(narrow, targets)
    found.sum().backward()
    assert found.dtype is torch.float32
    torch.testing.assert_close(found, functional.cross_entropy(narrow.float(), targets, reduction="none"))
    assert narrow.grad is not None
    assert narrow.grad.dtype is torch.bfloat16


def test_what_it_refuses_is_as_defined(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(kernel: Kernel, *_: Any, **__: Any) -> Any:
        assert kernel is ENTROPY
        raise Refused("a loss refused in a test")

    logits, targets = drawn(5, 11)
    monkeypatch.setattr(Kernel, "__call__", refused)
    with pytest.warns(FallsBack, match="a loss refused in a test"):
        found = next_token_losses(logits.float(), targets, "fla")
    torch.testing.assert_close(found, functional.cross_entropy(logits.float(), targets, reduction="none"))


@pytest.mark.gpu
@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16], ids=str)
def test_on_a_gpu_auto_takes_it(kind: torch.dtype) -> None:
    """At the vocabulary of Llama 3."""
    exact, targets = drawn(130, 128_256)
    logits, targets = exact.to(kind).cuda().requires_grad_(), targets.cuda()
    assert why_not_fused(logits, "auto") is None
    wide = logits.detach().double().requires_grad_()
    expected = functional.cross_entropy(wide, targets, reduction="none")
    expected.sum().backward()
    found = next_token_losses(logits, targets)
    found.sum().backward()
    torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-4)
    assert logits.grad is not None
    torch.testing.assert_close(logits.grad.double(), wide.grad, rtol=1e-2, atol=1e-4)
