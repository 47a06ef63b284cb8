"""Bounded softmax equals PyTorch's attention if a pair is visible, with its mass, and is 0 with mass -inf if none is."""

from __future__ import annotations

import importlib
import math

import pytest
import torch
from torch import Tensor

from blocks.softmax.dense import dense, masked_softmax
from tests.blocks.support import assert_derivatives, close, owner, random

MODULE = importlib.import_module("blocks.softmax.dense")


def sdpa(query: Tensor, key: Tensor, value: Tensor, visible: Tensor) -> Tensor:
    states = (states.transpose(1, 2) for states in (query, key, value))
    output = torch.nn.functional.scaled_dot_product_attention(*states, attn_mask=visible[:, None], enable_gqa=True)
    return output.transpose(1, 2)


def visible_somewhere(batch: int, rows: int, columns: int) -> Tensor:
    visible = torch.rand(batch, rows, columns) < 0.5
    visible[..., 0] |= ~visible.any(-1)
    return visible


@pytest.mark.parametrize("rows", [3, 512])
@pytest.mark.parametrize("heads", [(2, 2), (4, 2), (3, 1)], ids=str)
def test_output_equals_pytorchs_attention(heads: tuple[int, int], rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MODULE, "ROWS", rows)
    query, key, value = random(2, 7, heads[0], 4), random(2, 9, heads[1], 4), random(2, 9, heads[1], 4)
    visible = visible_somewhere(2, 7, 9)
    partial = dense(query, key, value, visible)
    close(partial.output, sdpa(query, key, value, visible))
    assert partial.lse is not None
    for batch, t, head in torch.ones_like(partial.lse).nonzero().tolist():
        logits = [
            float(query[batch, t, head] @ key[batch, s, owner(head, *heads)]) / math.sqrt(4)
            for s in range(9)
            if visible[batch, t, s]
        ]
        assert partial.lse[batch, t, head].item() == pytest.approx(math.log(sum(map(math.exp, logits))), rel=1e-10)


def test_rows_without_visible_pairs_have_zero_output_and_finite_gradients() -> None:
    tensors = [random(1, 3, 2, 4).requires_grad_(), random(1, 5, 2, 4).requires_grad_(), random(1, 5, 2, 4).requires_grad_()]
    visible = torch.ones(1, 3, 5, dtype=torch.bool)
    visible[0, 1] = False
    partial = dense(*tensors, visible)
    assert not partial.output[0, 1].any()
    assert partial.lse is not None
    assert partial.lse[0, 1].isneginf().all()
    assert partial.lse[0, ::2].isfinite().all()
    gradients = torch.autograd.grad(partial.output.sum() + partial.lse.exp().sum(), tensors)
    assert all(gradient.isfinite().all() for gradient in gradients)
    assert not gradients[0][0, 1].any()


def test_gradients_of_output_and_mass_match_numerical_gradients() -> None:
    visible = visible_somewhere(1, 3, 4)

    def run(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        partial = dense(query, key, value, visible)
        assert partial.lse is not None
        return partial.output, partial.lse

    assert_derivatives(run, (random(1, 3, 2, 2), random(1, 4, 1, 2), random(1, 4, 1, 2)))


@pytest.mark.parametrize("size", [50.0, 500.0])
def test_logits_of_any_size_are_finite(size: float) -> None:
    logits = size * random(4, 6, dtype=torch.float32)
    weights, lse, _ = masked_softmax(logits, torch.ones(4, 6, dtype=torch.bool))
    close(weights.double(), logits.double().softmax(-1), 1e-5)
    close(lse.double(), logits.double().logsumexp(-1), 1e-5)


def test_half_precision_computes_logits_and_mass_in_float32() -> None:
    query, key, value = (4 * random(1, 6, 2, 32).bfloat16() for _ in range(3))
    visible = torch.ones(1, 6, 6, dtype=torch.bool).tril()
    partial = dense(query, key, value, visible)
    assert partial.lse is not None
    assert (partial.output.dtype, partial.lse.dtype) == (torch.bfloat16, torch.float32)
    exact = dense(query.double(), key.double(), value.double(), visible)
    assert exact.lse is not None
    close(partial.lse.double(), exact.lse, 1e-5)
    assert ((partial.output.double() - exact.output).abs() <= 2**-8 * exact.output.abs() + 1e-4).all()
