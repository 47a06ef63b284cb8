"""The forms for one token of the additive recurrence and of the delta rule equal their definitions at T = 1."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest
import torch

from blocks.recurrences import additive, delta
from tests.blocks.recurrences.additive import problems as additive_problems
from tests.blocks.recurrences.delta import problems as delta_problems
from tests.blocks.support import assert_derivatives, close

PROBLEMS = {additive: additive_problems, delta: delta_problems}
CASES = [
    pytest.param(recurrence, rank, id=f"{recurrence.__name__.rpartition('.')[2]}-{rank}")
    for recurrence, problems in PROBLEMS.items()
    for rank in problems.RANKS
]


@pytest.mark.parametrize("documents", [False, True])
@pytest.mark.parametrize("heads", additive_problems.HEADS, ids=str)
@pytest.mark.parametrize(("recurrence", "rank"), CASES)
def test_step_and_chunked_match_the_naive_recurrence_for_one_token(
    recurrence: ModuleType, rank: str, heads: tuple[int, int, int], documents: bool
) -> None:
    problem = PROBLEMS[recurrence].draw(rank, heads, 1, documents=documents)
    expected = recurrence.naive(*problem.arguments())
    for form in (recurrence.step, recurrence.chunked):
        for actual, wanted in zip(form(*problem.arguments()), expected, strict=True):
            close(actual, wanted)


@pytest.mark.parametrize(("recurrence", "rank"), CASES)
def test_gradients_match_numerical_gradients(recurrence: ModuleType, rank: str) -> None:
    problem = PROBLEMS[recurrence].draw(rank, (4, 2, 1), 1, documents=True)

    def run(*tensors: torch.Tensor) -> Any:
        return recurrence.step(*problem.arguments(list(tensors)))

    assert_derivatives(run, problem.tensors)
