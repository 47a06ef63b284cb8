"""The convolution is its sum over taps to both sides, and starts as the identity."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor

from blocks.mixers.convolution import ConvolutionMixer
from tests.blocks.support import GROUPED, close, counted, documents, drawn, empty, mixed, random, started

LENGTHS = [[3, 1, 4], [8]]


def by_taps(row: Tensor, lengths: list[int], behind: Tensor, ahead: Tensor | None) -> Tensor:
    """Compute Σ_δ w_δ ⊙ x_{t-δ}, plus Σ_δ v_δ ⊙ x_{t+δ} if there is an ``ahead``, for each document."""
    output, kernel, first = torch.zeros_like(row), behind.shape[1], 0
    for length in lengths:
        for t, delta in itertools.product(range(first, first + length), range(kernel)):
            if t - delta >= first:
                output[t] += behind[:, kernel - 1 - delta] * row[t - delta]
            if ahead is not None and t + delta < first + length:
                output[t] += ahead[:, kernel - 1 - delta] * row[t + delta]
        first += length
    return output


@pytest.mark.parametrize("both_ways", [False, True])
@pytest.mark.parametrize("kernel", [1, 2, 3, 9])
def test_convolution_equals_the_sum_over_taps(kernel: int, both_ways: bool) -> None:
    part = ConvolutionMixer(kernel=kernel, both_ways=both_ways)
    parameters, hidden = drawn(part, GROUPED), random(2, 8, 6)
    got, _ = mixed(part, "torch", parameters, hidden, documents(*LENGTHS), empty(part, GROUPED, 2))
    for row, lengths in enumerate(LENGTHS):
        close(got[row], by_taps(hidden[row], lengths, parameters["weight"], parameters.get("backward_weight")))


def test_convolution_matches_lattes_equation_15() -> None:
    """The convolution is y_t = Σ_{i=0}^{K} w_i x_{t-i}, with K + 1 taps of which our last is w_0."""
    part = ConvolutionMixer(kernel=3)
    parameters, x = drawn(part, GROUPED), random(1, 6, 6)
    y, _ = mixed(part, "torch", parameters, x, counted(1, 6), empty(part, GROUPED, 1))
    w_2, w_1, w_0 = parameters["weight"].unbind(1)
    close(y[0, 5], w_0 * x[0, 5] + w_1 * x[0, 4] + w_2 * x[0, 3])


@pytest.mark.parametrize("both_ways", [False, True])
@pytest.mark.parametrize("kernel", [1, 3, 9])
def test_convolution_starts_as_the_identity(kernel: int, both_ways: bool) -> None:
    part, hidden = ConvolutionMixer(kernel=kernel, both_ways=both_ways), random(1, 6, 6)
    got, _ = mixed(part, "torch", started(part, GROUPED), hidden, counted(1, 6), empty(part, GROUPED, 1))
    assert torch.equal(got, hidden)


def test_the_state_holds_the_last_inputs() -> None:
    part, hidden = ConvolutionMixer(kernel=4), random(1, 5, 6)
    _, state = mixed(part, "torch", drawn(part, GROUPED), hidden, counted(1, 5), empty(part, GROUPED, 1))
    assert torch.equal(state["hidden"], hidden[:, 2:])
    _, state = mixed(part, "torch", drawn(part, GROUPED), hidden, documents([4, 1]), empty(part, GROUPED, 1))
    assert torch.equal(state["hidden"], torch.cat((torch.zeros(1, 2, 6), hidden[:, 4:]), dim=1))


def test_operation_count_equals_a_count_by_hand() -> None:
    assert ConvolutionMixer().flops(GROUPED, 100) == 2 * 3 * 6
