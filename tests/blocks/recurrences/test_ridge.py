"""The regression on the past is the best map from keys to values, and every form equals its definition, gradients included."""

from __future__ import annotations

import importlib
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from blocks.recurrences.ridge import DECAY_RANKS, FORMS, chunked, naive, step
from tests.blocks.recurrences.delta.problems import HEADS, Problem, draw
from tests.blocks.support import assert_derivatives, assert_split, by_backend, close, owner, random

MODULE = importlib.import_module("blocks.recurrences.ridge")
RANKS = ["none", "head"]


def with_squares(problem: Problem) -> Problem:
    """Return a state as sums of squares produce it: a symmetric G beside H."""
    rows = random(*problem.state.shape[:2], 7, problem.state.shape[2])
    return replace(problem, state=torch.cat((rows.mT @ rows, problem.state), dim=-1))


def drawn(rank: str, heads: tuple[int, int, int], length: int, **options: Any) -> tuple[Problem, Tensor]:
    """Draw a problem, and a penalty for each feature of each state head."""
    problem = with_squares(draw(rank, heads, length, **options))
    return problem, 0.25 + torch.rand(problem.key.shape[2:], dtype=torch.float64)


def agree(problem: Problem, penalty: Tensor, form: Any = chunked) -> None:
    """Check that outputs, last states and the gradients of all tensors equal the definition's."""
    answers = []
    for compute in (form, naive):
        *tensors, ridge = (tensor.clone().requires_grad_() for tensor in (*problem.tensors, penalty))
        output, state = compute(*problem.arguments(tensors), ridge=ridge)
        loss = output.square().mean() + state.square().mean()
        answers.append((output, state, *torch.autograd.grad(loss, [*tensors, ridge])))
    for got, wanted in zip(*answers, strict=True):
        close(got, wanted)


@pytest.mark.parametrize("form", by_backend(FORMS))
@pytest.mark.parametrize("rank", RANKS)
def test_the_output_minimises_the_regression_loss_of_the_past(rank: str, form: str) -> None:
    """Σ_s w_s ‖v_s - k_s M‖² + Σ_f λ_f ‖M_f‖² has gradient 0 at the M that a basis of queries reads."""
    problem, penalty = drawn(rank, (4, 2, 1), 9)
    problem = replace(problem, state=torch.zeros_like(problem.state))
    ages = (
        torch.zeros(2, 9, 2) if problem.log_decay is None else problem.log_decay.sum(1, keepdim=True) - problem.log_decay.cumsum(1)
    )
    weight = problem.rate * ages.exp()
    rows = []
    for feature in range(3):
        query = torch.zeros_like(problem.query)
        query[..., feature] = 1.0
        output, _ = by_backend(FORMS)[form](*replace(problem, query=query).arguments(), ridge=penalty)
        rows.append(output[:, -1])
    for row in range(2):
        for head in range(4):
            own = owner(head, 4, 2)
            result = torch.stack([of[row, head] for of in rows]).requires_grad_()
            errors = problem.value[row, :, 0] - problem.key[row, :, own] @ result
            loss = (weight[row, :, own, None] * errors.square()).sum() + (penalty[own][:, None] * result.square()).sum()
            (slope,) = torch.autograd.grad(loss, result)
            close(slope, torch.zeros_like(slope), 1e-9)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("documents", [False, True])
@pytest.mark.parametrize("heads", HEADS, ids=str)
@pytest.mark.parametrize("rank", RANKS)
def test_every_length_across_chunks_and_spans_matches_the_naive_recurrence(
    rank: str, heads: tuple[int, int, int], documents: bool
) -> None:
    for length in (1, 2, 4, 5, 8, 9, 20):
        agree(*drawn(rank, heads, length, documents=documents))


@pytest.mark.parametrize("length", [63, 64, 65, 197])
@pytest.mark.parametrize("rank", RANKS)
def test_default_chunks_and_spans_match_the_naive_recurrence(rank: str, length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MODULE, "SPAN", 2 * MODULE.CHUNK)
    agree(*drawn(rank, (4, 2, 1), length, documents=True, features=16))


@pytest.mark.parametrize("documents", [False, True])
@pytest.mark.parametrize("heads", HEADS, ids=str)
@pytest.mark.parametrize("rank", RANKS)
def test_one_token_matches_the_naive_recurrence(rank: str, heads: tuple[int, int, int], documents: bool) -> None:
    problem, penalty = drawn(rank, heads, 1, documents=documents)
    agree(problem, penalty, step)
    wanted = naive(*problem.arguments(), ridge=penalty)
    actual = step(*problem.arguments([tensor.clone() for tensor in problem.tensors]), ridge=penalty, in_place=True)
    for got, want in zip(actual, wanted, strict=True):
        close(got, want)
    nothing = replace(problem, rate=torch.zeros_like(problem.rate))
    rest = problem.log_decay, problem.segment, problem.state
    for got, want in zip(
        step(problem.query, None, None, None, *rest, ridge=penalty), naive(*nothing.arguments(), ridge=penalty), strict=True
    ):
        close(got, want)


@pytest.mark.usefixtures("small")
def test_gradients_match_numerical_gradients() -> None:
    problem, penalty = drawn("head", (2, 2, 1), 5, documents=True, features=2)

    def run(ridge: Tensor, *tensors: Tensor) -> Any:
        return chunked(*problem.arguments(list(tensors)), ridge=ridge)

    assert_derivatives(run, [penalty, *problem.tensors], fast_mode=True)


@pytest.mark.parametrize("cuts", [[1] * 11, [4, 7], [1, 9, 1]], ids=str)
@pytest.mark.parametrize("form", by_backend(FORMS))
def test_any_split_equals_one_call(form: str, cuts: list[int]) -> None:
    problem, penalty = drawn("head", (4, 4, 2), 11, documents=True)
    wanted = naive(*problem.arguments(), ridge=penalty)
    assert_split(partial(by_backend(FORMS)[form], ridge=penalty), wanted, problem.arguments(), cuts)


@pytest.mark.parametrize("rank", RANKS)
def test_the_solver_converges_for_heads_of_64_features(rank: str) -> None:
    """With 64 features and 512 tokens the error is 1e-9 of the largest output in float64, and rounding in float32."""
    problem, penalty = drawn(rank, (1, 1, 1), 512, batch=1, features=64, steepness=0.02, fastest=1.0)
    problem = replace(problem, state=torch.zeros_like(problem.state))
    wanted, _ = naive(*problem.arguments(), ridge=penalty)
    for dtype, tolerance in ((torch.float64, 1e-9), (torch.float32, 5e-6)):
        actual, _ = chunked(*problem.arguments([tensor.to(dtype) for tensor in problem.tensors]), ridge=penalty.to(dtype))
        assert (actual - wanted).abs().max() < tolerance * wanted.abs().max()


def test_the_solver_converges_for_ill_conditioned_systems_and_stops_early_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a penalty of 0.01 for 64 features the error after 32 steps is 7e-3 of the largest output. The steps end at rounding."""
    products: list[Any] = []
    product = MODULE._product
    monkeypatch.setattr(MODULE, "_product", lambda *operands: products.append(1) or product(*operands))
    for penalty, tolerance, fewest, most in ((0.01, 5e-5, 40, 65), (1.0, 5e-6, 3, 30)):
        problem, _ = drawn("none", (1, 1, 1), 64, batch=1, features=64)
        problem = replace(problem, state=torch.zeros_like(problem.state), rate=torch.full_like(problem.rate, 0.5))
        ridge = torch.full(problem.key.shape[2:], penalty, dtype=torch.float64)
        wanted, _ = naive(*problem.arguments(), ridge=ridge)
        products.clear()
        actual, _ = chunked(*problem.arguments([tensor.float() for tensor in problem.tensors]), ridge=ridge.float())
        assert (actual - wanted).abs().max() < tolerance * wanted.abs().max()
        assert fewest <= len(products) <= most


def test_zero_queries_have_zero_output() -> None:
    problem, penalty = drawn("head", (2, 2, 2), 70)
    problem.query[:, 3] = 0
    output, _ = chunked(*problem.arguments(), ridge=penalty)
    assert not output[:, 3].any()
    assert output.isfinite().all()


def test_the_tests_cover_every_rank_of_decay() -> None:
    assert set(RANKS) == DECAY_RANKS
