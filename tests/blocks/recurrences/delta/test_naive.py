"""The definition equals the papers' sum, and a key that is written twice holds the newer value."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from blocks.recurrences import additive
from blocks.recurrences.delta import DECAY_RANKS, FORMS, naive
from tests.blocks.recurrences.delta.problems import FEATURES, HEADS, RANKS, WIDTH, draw
from tests.blocks.support import by_backend, close, cut, owner, random


@pytest.mark.parametrize("documents", [False, True])
@pytest.mark.parametrize("heads", HEADS, ids=str)
@pytest.mark.parametrize("rank", RANKS)
def test_the_naive_recurrence_equals_the_sum_over_the_past(rank: str, heads: tuple[int, int, int], documents: bool) -> None:
    """S_t = P_1…t S_0 + Σ_s P_s+1…t β_s k_s v_sᵀ, with P_a…b = M_b ⋯ M_a and M_u = (I - β_u k_u k_uᵀ) D_u as a matrix."""
    problem, length = draw(rank, heads, 6, documents=documents), 6
    output, state = naive(*problem.arguments())
    query_heads, state_heads, key_heads = heads
    for batch, t, head in itertools.product(range(2), range(length), range(query_heads)):
        state_head = owner(head, query_heads, state_heads)
        key_head = owner(state_head, state_heads, key_heads)
        segment = torch.zeros(length, dtype=torch.int64) if problem.segment is None else problem.segment[batch]
        held = torch.zeros(FEATURES, WIDTH, dtype=torch.float64)
        passes = torch.eye(FEATURES, dtype=torch.float64)
        for s in range(t, -1, -1):
            if segment[s] != segment[t]:
                break
            key, rate = problem.key[batch, s, state_head], problem.rate[batch, s, state_head]
            held += rate * passes @ key.outer(problem.value[batch, s, key_head])
            survives = 1.0 if problem.log_decay is None else problem.log_decay[batch, s, state_head].exp()
            passes = passes @ ((torch.eye(FEATURES) - rate * key.outer(key)) * survives)
        if segment[t] == 0:
            held += passes @ problem.state[batch, state_head]
        close(output[batch, t, head], problem.query[batch, t, head] @ held)
        if t == length - 1:
            close(state[batch, state_head], held)


def test_a_rate_of_0_only_decays_the_state() -> None:
    problem = draw("head", (4, 2, 1), 5)
    assert problem.log_decay is not None
    _, state = naive(*replace(problem, rate=torch.zeros_like(problem.rate)).arguments())
    close(state, problem.state * problem.log_decay.sum(1).exp()[..., None, None])


@pytest.mark.parametrize("form", by_backend(FORMS).values(), ids=by_backend(FORMS))
def test_the_prediction_for_a_key_moves_to_the_value_by_the_rate(form: Callable[..., Any]) -> None:
    """k_t S_t = (1 - β_t) α_t k_t S_{t-1} + β_t v_t for a key of length 1."""
    problem = draw("head", (2, 2, 2), 12)
    state = problem.state
    for t in range(12):
        _, _, value, rate, decay, _, before = arguments = cut(problem.arguments(), slice(t, t + 1), state)
        key = problem.key[:, t]
        _, state = form(*arguments)
        held = torch.einsum("bnf,bnfv->bnv", key, before) * decay[:, 0].exp()[..., None]
        close(torch.einsum("bnf,bnfv->bnv", key, state), held + rate[:, 0, :, None] * (value[:, 0] - held))


@pytest.mark.parametrize("form", by_backend(FORMS))
def test_orthonormal_keys_return_the_newest_value(form: str) -> None:
    """Sixteen orthonormal keys fill sixteen features. Four keys are written again and return the newer value, where a sum
    returns both.
    """
    keys = torch.linalg.qr(random(2, 16, 16)).Q
    again = [3, 8, 0, 15]
    key = torch.cat((keys, keys[:, again]), dim=1)[:, :, None]
    value = random(2, 20, 1, 5)
    rate, state = torch.ones(2, 20, 1, dtype=torch.float64), torch.zeros(2, 1, 16, 5, dtype=torch.float64)
    first, newer = value[:, :16, 0], value[:, :16, 0].clone()
    newer[:, again] = value[:, 16:, 0]

    _, held = by_backend(FORMS)[form](key[:, :16], key[:, :16], value[:, :16], rate[:, :16], None, None, state)
    close(keys @ held[:, 0], first, 1e-12)
    output, held = by_backend(FORMS)[form](key, key, value, rate, None, None, state)
    close(output, value, 1e-12)
    close(keys @ held[:, 0], newer, 1e-12)

    _, piled = by_backend(additive.FORMS)[form](key, key, value, None, None, state)
    close((keys @ piled[:, 0])[:, again], first[:, again] + newer[:, again], 1e-12)


def test_the_tests_cover_every_rank_of_decay() -> None:
    assert set(RANKS) == DECAY_RANKS
