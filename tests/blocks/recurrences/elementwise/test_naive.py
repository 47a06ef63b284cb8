"""The definition equals the recurrence, number by number, and its sum over the past."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from blocks.recurrences.elementwise import naive
from tests.blocks.recurrences.elementwise.problems import draw
from tests.blocks.support import close


@pytest.mark.parametrize("documents", [False, True])
def test_the_naive_recurrence_equals_a_loop_over_numbers(documents: bool) -> None:
    inputs, log_decay, segment, state = draw(9, documents=documents)
    outputs, last = naive(inputs, log_decay, segment, state)
    for row, channel in itertools.product(range(2), range(3)):
        held, document = state[row, channel].item(), 0
        for t in range(9):
            own = 0 if segment is None else int(segment[row, t])
            if own != document:
                held, document = 0.0, own
            held = math.exp(log_decay[row, t, channel].item()) * held + inputs[row, t, channel].item()
            assert outputs[row, t, channel].item() == pytest.approx(held, rel=1e-12, abs=1e-12)
        assert last[row, channel].item() == pytest.approx(held, rel=1e-12, abs=1e-12)


def test_the_naive_recurrence_equals_the_sum_over_the_past() -> None:
    """h_t = Σ_{s≤t} exp(Σ_{s<u≤t} g_u) ⊙ b_s, with the initial state as what entered before the first token."""
    inputs, log_decay, _, state = draw(8)
    outputs, _ = naive(inputs, log_decay, None, state)
    for t in range(8):
        held = state * log_decay[:, : t + 1].sum(1).exp()
        for s in range(t + 1):
            held = held + inputs[:, s] * log_decay[:, s + 1 : t + 1].sum(1).exp()
        close(outputs[:, t], held)


def test_documents_start_without_the_state() -> None:
    inputs, log_decay, _, state = draw(6)
    segment = torch.tensor([[1] * 6, [0] * 4 + [1] * 2])
    outputs, last = naive(inputs, log_decay, segment, state)
    alone, alone_last = naive(inputs[:1], log_decay[:1], None, torch.zeros_like(state[:1]))
    close(outputs[:1], alone)
    close(last[:1], alone_last)
    close(outputs[1, 4], inputs[1, 4])
