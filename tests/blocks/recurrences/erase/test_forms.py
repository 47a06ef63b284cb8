"""The gated delta rule 2 with a constant gate is the delta rule, and every form equals its definition, gradients included."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import tests.interpreter  # noqa: F401 - the kernels run in it
from blocks.recurrences import delta
from blocks.recurrences.erase import DECAY_RANKS, FORMS, chunked, fla_forms, naive, step
from tests.blocks.recurrences.delta.problems import HEADS, RANKS, Problem, draw
from tests.blocks.recurrences.kernels import CLOSE, compared
from tests.blocks.support import by_backend, close


def tensors_of(problem: Problem) -> list[Tensor | None]:
    """Return query, key, value, erase, decay and state. An erase gate per feature replaces the rate."""
    erase = 2 * torch.rand(problem.key.shape, dtype=torch.float64)
    return [problem.query, problem.key, problem.value, erase, problem.log_decay, problem.state]


def computed(form: Any, tensors: list[Tensor | None], segment: Tensor | None) -> list[Tensor]:
    """Return the output, the state and the gradients of all tensors."""
    leaves = [None if tensor is None else tensor.clone().requires_grad_() for tensor in tensors]
    output, state = form(*leaves[:-1], segment, leaves[-1])
    loss = output.square().mean() + state.square().mean()
    return [output, state, *torch.autograd.grad(loss, [leaf for leaf in leaves if leaf is not None])]


@pytest.mark.parametrize("form", by_backend(FORMS))
@pytest.mark.parametrize("rank", RANKS)
def test_equal_rates_for_all_features_equal_the_delta_rule(rank: str, form: str) -> None:
    problem = draw(rank, (4, 2, 2), 70, documents=True)
    erase, written = problem.rate[..., None].expand_as(problem.key), problem.rate[..., None] * problem.value
    rest = problem.log_decay, problem.segment, problem.state
    wanted = delta.naive(problem.query, problem.key, problem.value, problem.rate, *rest)
    for got, want in zip(by_backend(FORMS)[form](problem.query, problem.key, written, erase, *rest), wanted, strict=True):
        close(got, want)


@pytest.mark.parametrize("documents", [False, True])
@pytest.mark.parametrize("heads", HEADS, ids=str)
@pytest.mark.parametrize("rank", RANKS)
def test_forms_match_the_definition(rank: str, heads: tuple[int, int, int], documents: bool) -> None:
    for length, form in ((1, step), (1, chunked), (21, chunked), (130, chunked)):
        problem = draw(rank, heads, length, documents=documents)
        tensors = tensors_of(problem)
        for got, wanted in zip(computed(form, tensors, problem.segment), computed(naive, tensors, problem.segment), strict=True):
            close(got, wanted)


def test_fla_kernels_match_the_definition() -> None:
    problem = draw("channel", (2, 1, 1), 21, batch=1)
    compared(naive, fla_forms.chunked, tensors_of(problem), None, 17)
    problem = draw("channel", (4, 4, 2), 1, documents=True)
    *columns, state = tensors_of(problem)
    wanted = naive(*columns, problem.segment, state)
    with torch.no_grad():
        actual = fla_forms.step(
            *(None if tensor is None else tensor.float() for tensor in columns), problem.segment, problem.state.float()
        )
    for got, want in zip(actual, wanted, strict=True):
        torch.testing.assert_close(got.double(), want, rtol=CLOSE, atol=CLOSE)


def test_the_tests_cover_every_rank_of_decay() -> None:
    assert set(RANKS) == DECAY_RANKS
