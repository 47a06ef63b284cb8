"""The definition equals the papers' sum: each output is a sum over earlier pairs, decayed by all tokens since."""

from __future__ import annotations

import itertools

import pytest
import torch

from blocks.recurrences.additive.recurrent import naive
from tests.blocks.recurrences.additive.problems import FEATURES, HEADS, RANKS, WIDTH, draw
from tests.blocks.support import close, owner


@pytest.mark.parametrize("documents", [False, True])
@pytest.mark.parametrize("heads", HEADS, ids=str)
@pytest.mark.parametrize("rank", RANKS)
def test_the_naive_recurrence_equals_the_sum_over_the_past(rank: str, heads: tuple[int, int, int], documents: bool) -> None:
    """o_t = Σ_s Σ_f q_tf (Π_{s<u≤t} α_uf) k_sf v_s, with the initial state as what entered before the first token."""
    problem, length = draw(rank, heads, 6, documents=documents), 6
    output, state = naive(*problem.arguments())
    query_heads, state_heads, key_heads = heads
    for batch, t, head in itertools.product(range(2), range(length), range(query_heads)):
        state_head = owner(head, query_heads, state_heads)
        key_head = owner(state_head, state_heads, key_heads)
        survives = torch.ones(length, FEATURES, dtype=torch.float64)
        if problem.log_decay is not None:
            survives = problem.log_decay[batch, :, state_head].exp().view(length, -1).expand(-1, FEATURES)
        segment = torch.zeros(length, dtype=torch.int64) if problem.segment is None else problem.segment[batch]
        held = torch.zeros(FEATURES, WIDTH, dtype=torch.float64)
        if segment[t] == 0:
            held = problem.state[batch, state_head] * survives[: t + 1].prod(0)[:, None]
        for s in range(t + 1):
            if segment[s] == segment[t]:
                entered = problem.key[batch, s, state_head][:, None] * problem.value[batch, s, key_head]
                held = held + entered * survives[s + 1 : t + 1].prod(0)[:, None]
        close(output[batch, t, head], problem.query[batch, t, head] @ held)
        if t == length - 1:
            close(state[batch, state_head], held)
