"""An attention sink is one more column of the softmax without a value. An empty memory keeps its sink."""

from __future__ import annotations

import math

import torch

from blocks.flow import Partial, Tokens
from blocks.legend import Shape
from blocks.reads import Sinks
from tests.blocks.support import close, computed, random

SHAPE = Shape(hidden_size=8, heads=3, key_heads=3, head_dim=5, sinks=True)


def sunk(logits: torch.Tensor, value: torch.Tensor, sinks: torch.Tensor) -> Partial:
    """Return the part's softmax over the logits ``B T H S`` and values ``B S H D``."""
    lse = logits.logsumexp(-1)
    output = torch.einsum("bths,bshd->bthd", logits.softmax(-1).nan_to_num(0.0), value)
    tokens = Tokens(torch.arange(logits.shape[1]).expand(logits.shape[0], -1))
    (answer,), state = computed(Sinks(), "torch", SHAPE, {}, tokens, {}, partial=Partial(output, lse), sinks=sinks)
    assert state == {}
    return answer


def test_sinks_are_a_column_of_the_softmax() -> None:
    logits, value, sinks = (tensor.requires_grad_() for tensor in (4 * random(2, 4, 3, 6), random(2, 6, 3, 5), random(3)))
    answer = sunk(logits, value, sinks)
    columns = torch.cat((logits, sinks[:, None].expand(2, 4, 3, 1)), dim=-1)
    wanted = torch.einsum("bths,bshd->bthd", columns.softmax(-1)[..., :-1], value)
    close(answer.output, wanted)
    assert answer.lse is not None
    close(answer.lse, columns.logsumexp(-1))
    into = random(*wanted.shape)
    gradients = torch.autograd.grad((answer.output * into).sum(), (logits, value, sinks))
    for actual, other in zip(gradients, torch.autograd.grad((wanted * into).sum(), (logits, value, sinks)), strict=True):
        close(actual, other)


def test_an_empty_memory_keeps_its_sink() -> None:
    sinks = random(3).requires_grad_()
    answer = sunk(torch.full((1, 1, 3, 2), -math.inf), random(1, 2, 3, 5).float(), sinks)
    assert answer.lse is not None
    assert torch.equal(answer.output, torch.zeros(1, 1, 3, 5))
    close(answer.lse[0, 0], sinks)
    (answer.output.sum() + answer.lse.sum()).backward()
    assert sinks.grad is not None
    assert torch.equal(sinks.grad, torch.ones_like(sinks))
