"""The form for one token equals the definition at T = 1, and calls continue from each other's states."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from blocks.recurrences.delta import FORMS, naive, step
from tests.blocks.recurrences.delta.problems import RANKS, draw
from tests.blocks.support import assert_split, by_backend, close


@pytest.mark.parametrize("documents", [False, True])
@pytest.mark.parametrize("rank", RANKS)
def test_gradients_equal_those_of_the_naive_recurrence(rank: str, documents: bool) -> None:
    problem = draw(rank, (4, 2, 1), 1, documents=documents)
    answers = []
    for form in (step, naive):
        tensors = [tensor.clone().requires_grad_() for tensor in problem.tensors]
        output, state = form(*problem.arguments(tensors))
        answers.append(torch.autograd.grad(output.square().sum() + state.square().sum(), tensors))
    for got, wanted in zip(*answers, strict=True):
        close(got, wanted)


@pytest.mark.parametrize("cuts", [[1] * 11, [4, 7], [1, 9, 1]], ids=str)
@pytest.mark.parametrize("documents", [False, True])
@pytest.mark.parametrize("rank", RANKS)
@pytest.mark.parametrize("form", by_backend(FORMS).values(), ids=by_backend(FORMS))
def test_any_split_equals_one_call(form: Callable[..., Any], rank: str, documents: bool, cuts: list[int]) -> None:
    problem = draw(rank, (4, 4, 2), 11, documents=documents)
    assert_split(form, naive(*problem.arguments()), problem.arguments(), cuts)
