"""The scan equals the definition, gradients included, at every length and for every decay."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from blocks.recurrences.elementwise import naive, scan
from tests.blocks.recurrences.elementwise.problems import draw
from tests.blocks.support import assert_derivatives, close


@pytest.mark.parametrize("documents", [False, True])
def test_every_length_matches_the_naive_recurrence(documents: bool) -> None:
    """The lengths are squares and their neighbours, so that the last chunk is full, has one token, or lacks one."""
    for length in (*range(1, 28), 63, 64, 65, 100, 101, 130):
        problem = draw(length, documents=documents)
        for got, wanted in zip(scan(*problem), naive(*problem), strict=True):
            close(got, wanted)


@pytest.mark.parametrize("documents", [False, True])
@pytest.mark.parametrize("steepness", [0.0, 1.0, 60.0, 1e4])
def test_gradients_equal_those_of_the_naive_recurrence(steepness: float, documents: bool) -> None:
    inputs, log_decay, segment, state = draw(40, documents=documents, steepness=steepness)
    answers = []
    for form in (scan, naive):
        tensors = [tensor.clone().requires_grad_() for tensor in (inputs, log_decay, state)]
        outputs, last = form(tensors[0], tensors[1], segment, tensors[2])
        answers.append(torch.autograd.grad(outputs.square().sum() + last.sum(), tensors))
    for got, wanted in zip(*answers, strict=True):
        close(got, wanted)


def test_gradients_match_numerical_gradients() -> None:
    inputs, log_decay, segment, state = draw(7, documents=True, width=2)

    def run(*tensors: Tensor) -> Any:
        return scan(tensors[0], tensors[1], segment, tensors[2])

    assert_derivatives(run, (inputs, log_decay, state))


@pytest.mark.parametrize("form", [scan, naive])
def test_a_decay_of_minus_infinity_drops_the_past_without_nan(form: Any) -> None:
    """A decay of -inf gives no NaN forward or backward, and the tokens after it do not depend on the tokens before it."""
    inputs, log_decay, _, state = draw(30)
    log_decay[:, 17] = -math.inf
    tensors = [tensor.requires_grad_() for tensor in (inputs, log_decay, state)]
    outputs, last = form(tensors[0], tensors[1], None, tensors[2])
    alone, alone_last = naive(inputs[:, 17:], log_decay[:, 17:], None, torch.zeros_like(state))
    close(outputs[:, 17:], alone)
    close(last, alone_last)
    gradients = torch.autograd.grad(outputs.square().sum() + last.sum(), tensors)
    assert all(gradient.isfinite().all() for gradient in gradients)
    assert not gradients[1][:, 17].any()


@pytest.mark.parametrize("steepness", [0.5, 3.0, 50.0, 300.0, 1e4])
def test_float32_is_accurate_for_any_decay(steepness: float) -> None:
    """Small decays stay exact between steep ones, although decays are summed over a chunk."""
    problem = inputs, log_decay, segment, state = draw(500, documents=True, steepness=steepness)
    log_decay[:, 1::3] *= 1e-3
    for got, wanted in zip(scan(inputs.float(), log_decay.float(), segment, state.float()), naive(*problem), strict=True):
        assert got.dtype == torch.float32
        close(got.double(), wanted, 1e-5)


def test_float32_is_accurate_over_131072_tokens() -> None:
    """Channels remember 10 to 100,000 tokens, so sums grow to some hundreds."""
    length = 131_072
    inputs, log_decay, _, state = draw(length, batch=1, width=4)
    log_decay = log_decay * torch.tensor([1e-1, 1e-2, 1e-4, 1e-5], dtype=torch.float64)
    single = [tensor.float() for tensor in (inputs, log_decay, state)]
    wanted, last = naive(single[0].double(), single[1].double(), None, single[2].double())
    got, got_last = scan(single[0], single[1], None, single[2])
    scale = wanted.abs().amax(1, keepdim=True)
    close(got.double() / scale, wanted / scale, 1e-5)
    close(got_last.double() / scale[:, 0], last / scale[:, 0], 1e-5)
