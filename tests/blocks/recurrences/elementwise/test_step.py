"""The form for one token equals the definition at T = 1, and calls continue from each other's states."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from blocks.recurrences.elementwise import FORMS, naive, scan, step
from tests.blocks.recurrences.elementwise.problems import draw
from tests.blocks.support import assert_derivatives, assert_split, by_backend, close


@pytest.mark.parametrize("documents", [False, True])
def test_one_token_matches_the_naive_recurrence(documents: bool) -> None:
    problem = draw(1, documents=documents)
    wanted = naive(*problem)
    for form in (step, scan):
        for got, want in zip(form(*problem), wanted, strict=True):
            close(got, want)


def test_gradients_match_numerical_gradients() -> None:
    inputs, log_decay, segment, state = draw(1, documents=True)

    def run(*tensors: torch.Tensor) -> Any:
        return step(tensors[0], tensors[1], segment, tensors[2])

    assert_derivatives(run, (inputs, log_decay, state))


@pytest.mark.parametrize("cuts", [[1] * 21, [4, 17], [1, 19, 1], [16, 5]], ids=str)
@pytest.mark.parametrize("form", by_backend(FORMS).values(), ids=by_backend(FORMS))
def test_any_split_equals_one_call(form: Callable[..., Any], cuts: list[int]) -> None:
    problem = draw(21, documents=True)
    assert_split(form, naive(*problem), problem, cuts)
