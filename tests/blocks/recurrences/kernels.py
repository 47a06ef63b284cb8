"""Comparison of a kernel form in float32 with the definition in float64, gradients included."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

CLOSE = 1e-5
Recurrence = Callable[..., tuple[Tensor, Tensor]]


def compared(definition: Recurrence, form: Recurrence, tensors: Sequence[Tensor | None], segment: Tensor | None, cut: int) -> None:
    """Check that outputs, the last state and the gradients of all tensors, the state last, are equal. cut: the token at which
    the form's call is split in two; 0 for one call.
    """
    wanted = _computed(definition, tensors, segment, 0, torch.float64)
    actual = _computed(form, tensors, segment, cut, torch.float32)
    for first, other in zip(actual, wanted, strict=True):
        scale = other.abs().max().item()
        assert scale > 0
        torch.testing.assert_close(first.double(), other, rtol=0, atol=CLOSE * scale)


def _computed(
    run: Recurrence, tensors: Sequence[Tensor | None], segment: Tensor | None, cut: int, kind: torch.dtype
) -> list[Tensor]:
    leaves = [None if of is None else of.to(kind).requires_grad_() for of in tensors]
    *inputs, state = leaves
    outputs: list[Tensor] = []
    for piece in (slice(0, cut), slice(cut, None)) if cut else (slice(None),):
        begins = 0 if segment is None or not cut or piece.start == 0 else segment[:, cut - 1 : cut]
        documents = None if segment is None else segment[:, piece] - begins
        output, state = run(*(None if of is None else of[:, piece] for of in inputs), documents, state)
        outputs.append(output)
    assert state is not None
    answers = [torch.cat(outputs, dim=1), state]
    loss = sum((of * _weights(of)).sum() for of in answers)
    assert isinstance(loss, Tensor)
    gradients = torch.autograd.grad(loss, [of for of in leaves if of is not None])
    return [*(of.detach() for of in answers), *gradients]


def _weights(like: Tensor) -> Any:
    return torch.randn(like.shape, generator=torch.Generator().manual_seed(like.dim()), dtype=torch.float64).to(like.dtype)
