"""The form for one token equals the definition at T = 1, and calls continue from each other's states."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from blocks.recurrences.additive import FORMS, naive, step
from tests.blocks.recurrences.additive.problems import HEADS, RANKS, draw
from tests.blocks.support import assert_split, by_backend, close


@pytest.mark.parametrize("of_its_own", [False, True])
@pytest.mark.parametrize("heads", HEADS, ids=str)
@pytest.mark.parametrize("rank", RANKS)
def test_several_pairs_evicted_at_one_token_enter_after_one_decay(rank: str, heads: tuple[int, int, int], of_its_own: bool) -> None:
    """The state decays at the first pair, and all pairs enter. of_its_own: one key per state head, or per group that shares a
    value.
    """
    problem = draw(rank, heads, 3)
    shared = problem.state.shape[1] // problem.value.shape[2]
    key = problem.key if of_its_own else problem.key[:, :, ::shared]
    query, decay = problem.query[:, -1:], None if problem.log_decay is None else problem.log_decay[:, :1]
    output, left = step(query, key, problem.value, decay, None, problem.state)
    wanted = problem.state
    every = key if of_its_own else key.repeat_interleave(shared, dim=2)
    for at in range(3):
        token = slice(at, at + 1)
        answer, wanted = naive(query, every[:, token], problem.value[:, token], decay if at == 0 else None, None, wanted)
    close(left, wanted)
    close(output, answer)


@pytest.mark.parametrize("cuts", [[1] * 11, [4, 7], [1, 9, 1]], ids=str)
@pytest.mark.parametrize("rank", RANKS)
@pytest.mark.parametrize("form", by_backend(FORMS).values(), ids=by_backend(FORMS))
def test_any_split_equals_one_call(form: Callable[..., Any], rank: str, cuts: list[int]) -> None:
    problem = draw(rank, (4, 4, 2), 11, documents=True)
    assert_split(form, naive(*problem.arguments()), problem.arguments(), cuts)
