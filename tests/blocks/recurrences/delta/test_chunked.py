"""The chunked form equals the definition, gradients included, at every boundary and for every decay."""

from __future__ import annotations

import importlib
import math
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor

from blocks.recurrences.delta import chunked, naive
from tests.blocks.recurrences.delta.problems import HEADS, RANKS, Problem, draw
from tests.blocks.support import assert_agree, assert_derivatives, close

MODULE = importlib.import_module("blocks.recurrences.delta.chunked")


@pytest.mark.usefixtures("small", "ways")
@pytest.mark.parametrize("documents", [False, True])
@pytest.mark.parametrize("heads", HEADS, ids=str)
@pytest.mark.parametrize("rank", RANKS)
def test_every_length_across_chunks_and_spans_matches_the_naive_recurrence(
    rank: str, heads: tuple[int, int, int], documents: bool
) -> None:
    for length in (1, 3, 4, 5, 8, 9, 20):
        assert_agree(chunked, naive, draw(rank, heads, length, documents=documents))


@pytest.mark.parametrize("length", [1, 2, 63, 64, 65, 130, 197])
@pytest.mark.parametrize("documents", [False, True])
@pytest.mark.parametrize("rank", RANKS)
def test_default_chunks_and_spans_match_the_naive_recurrence(
    rank: str, documents: bool, length: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MODULE, "SPAN", 2 * MODULE.CHUNK)
    assert_agree(chunked, naive, draw(rank, (4, 2, 1), length, documents=documents))


@pytest.mark.parametrize("documents", [False, True])
@pytest.mark.parametrize("steepness", [60.0, 1e4])
@pytest.mark.parametrize("rank", ["head", "channel"])
def test_small_decays_are_exact_between_steep_decays(rank: str, steepness: float, documents: bool) -> None:
    """Small decays stay exact between steep ones: the share of a far token does not round away that of a near one."""
    problem = draw(rank, (4, 2, 1), 130, documents=documents, steepness=steepness)
    assert problem.log_decay is not None
    problem.log_decay[:, 1::3] *= 1e-3
    assert_agree(chunked, naive, problem)
    assert_agree(chunked, naive, replace(problem, log_decay=torch.full_like(problem.log_decay, -steepness)))


@pytest.mark.parametrize("rank", ["head", "channel"])
def test_a_decay_of_0_gives_no_nan(rank: str) -> None:
    problem = draw(rank, (2, 2, 2), 70)
    assert problem.log_decay is not None
    problem.log_decay[:, [0, 5, 6, 40, 66]] = -math.inf
    assert_agree(chunked, naive, problem)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("rank", RANKS)
def test_gradients_match_numerical_gradients(rank: str) -> None:
    problem = draw(rank, (2, 2, 1), 5, documents=True, features=2)

    def run(*tensors: Tensor) -> Any:
        return chunked(*problem.arguments(list(tensors)))

    assert_derivatives(run, problem.tensors)


@pytest.mark.parametrize("rank", ["none", "head"])
def test_neighbouring_documents_change_no_bit(rank: str) -> None:
    """Neighbouring documents change no bit of a document, and its loss has no gradient for them."""
    problem = replace(draw(rank, (4, 2, 1), 150), segment=torch.tensor([0] * 50 + [1] * 60 + [2] * 40).expand(2, -1))
    own, answers = slice(50, 110), []
    others = draw(rank, (4, 2, 1), 150)
    for tensor, mine in zip(others.tensors[:-1], problem.tensors[:-1], strict=True):
        tensor[:, own] = mine[:, own]
    for case in (problem, others):
        tensors = [tensor.requires_grad_() for tensor in case.tensors]
        output, _ = chunked(*problem.arguments(tensors))
        gradients = torch.autograd.grad(output[:, own].square().sum(), tensors)
        for gradient in gradients[:-1]:
            assert gradient[:, own].any()
            assert not gradient[:, :50].any()
            assert not gradient[:, 110:].any()
        assert not gradients[-1].any()
        answers.append((output[:, own], *(gradient[:, own] for gradient in gradients[:-1])))
    for first, other in zip(*answers, strict=True):
        assert torch.equal(first, other)


def test_with_decay_by_feature_neighbouring_documents_change_only_rounding() -> None:
    """With a decay per feature, an earlier document's share is added to a sum and subtracted again, which leaves rounding only."""
    problem = replace(draw("channel", (4, 2, 1), 150), segment=torch.tensor([0] * 50 + [1] * 60 + [2] * 40).expand(2, -1))
    tensors = [tensor.requires_grad_() for tensor in problem.tensors]
    output, _ = chunked(*problem.arguments(tensors))
    for gradient in torch.autograd.grad(output[:, 50:110].square().sum(), tensors)[:-1]:
        own = gradient[:, 50:110].abs().max()
        assert gradient[:, :50].abs().max() <= 1e-11 * own
        assert gradient[:, 110:].abs().max() <= 1e-11 * own


def single_errors(problem: Problem) -> Tensor:
    """Return the error of chunks in float32 against the definition in float64, relative to each row's largest number."""
    single = [tensor.float() for tensor in problem.tensors]
    double = [tensor.double() for tensor in single]
    errors = []
    for got, wanted in zip(chunked(*problem.arguments(single)), naive(*problem.arguments(double)), strict=True):
        assert got.dtype == torch.float32
        errors.append((got - wanted).flatten(1).abs().amax(1) / wanted.flatten(1).abs().amax(1))
    return torch.stack(errors).amax(0)


@pytest.mark.parametrize("rank", RANKS)
def test_float32_is_accurate_over_4096_tokens(rank: str) -> None:
    """One row has rates below 1, the other row below 2."""
    fastest = torch.tensor([1.0, 2.0], dtype=torch.float64)
    problem = draw(rank, (2, 2, 2), 4096, features=16, fastest=1.0, steepness=0.01)
    errors = single_errors(replace(problem, rate=problem.rate * fastest[:, None, None]))
    assert (errors < 2e-6).all(), errors


def test_float32_is_accurate_for_similar_keys() -> None:
    """With similar keys the triangular system is hardest: every entry below the diagonal is about the rate. Each row has its own
    spread.
    """
    rates, spreads = torch.tensor(list(product([0.5, 1.0, 1.9], [0.0, 0.1])), dtype=torch.float64).T[..., None, None]
    problem = draw("none", (2, 2, 2), 4096, batch=6, features=16)
    moved = problem.key[:, :1] + spreads[..., None] * torch.randn_like(problem.key)
    problem = replace(problem, key=torch.nn.functional.normalize(moved, dim=-1), rate=rates.expand_as(problem.rate))
    errors = single_errors(problem)
    assert (errors < 1e-5).all(), errors


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("documents", [False, True])
@pytest.mark.parametrize("heads", HEADS, ids=str)
def test_gradients_are_right_for_tensors_used_twice(heads: tuple[int, int, int], documents: bool) -> None:
    """Gradients are right if keys are also queries, a value is used in two calls, backward runs twice, and for each input alone."""
    problem, answers = draw("head", heads, 11, documents=documents), []
    query, key, value, *others = problem.tensors
    for form in (chunked, naive):
        both, shared, *rest = tensors = [of.clone().requires_grad_() for of in (key, value, *others)]
        queries = both.repeat_interleave(query.shape[2] // key.shape[2], dim=2)
        first, held = form(*problem.arguments([queries, both, shared, *rest]))
        second, _ = form(*problem.arguments([queries, both, shared, *rest[:-1], held]))
        loss = (first * second).sum() + first.square().sum()
        actual = [*torch.autograd.grad(loss, tensors, retain_graph=True), *torch.autograd.grad(2 * loss, tensors)]
        for index in range(len(problem.tensors)):
            alone = [of.clone() for of in problem.tensors]
            alone[index].requires_grad_()
            output, state = form(*problem.arguments(alone))
            actual += torch.autograd.grad(output.square().sum() + state.sum(), alone[index])
        answers.append(actual)
    for got, wanted in zip(*answers, strict=True):
        close(got, wanted)
