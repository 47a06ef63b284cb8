"""The chunked form equals the definition, gradients included, at every boundary and for every decay."""

from __future__ import annotations

import importlib
from typing import Any

import pytest
import torch
from torch import Tensor

from blocks.recurrences.additive import chunked, naive
from tests.blocks.recurrences.additive.problems import HEADS, RANKS, draw
from tests.blocks.support import assert_derivatives, close

MODULE = importlib.import_module("blocks.recurrences.additive.chunked")


@pytest.fixture
def blocks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Record the block length with which each span's chunks began."""
    answers, original = [], MODULE.block_of

    def noted(log_decay: Tensor, chunk: int) -> int:
        answers.append(original(log_decay, chunk))
        return answers[-1]

    monkeypatch.setattr(MODULE, "block_of", noted)
    return answers


def longest(log_decay: Tensor) -> int:
    """Return the longest block of 64, 32, … tokens in which no feature decays below e^-40, or 1."""
    for block in (64, 32, 16, 8, 4, 2):
        parts = [log_decay[:, start : start + block].sum(1) for start in range(0, log_decay.shape[1], block)]
        if min(float(part.min()) for part in parts) >= -40:
            return block
    return 1


@pytest.mark.usefixtures("small", "ways")
@pytest.mark.parametrize("documents", [False, True])
@pytest.mark.parametrize("heads", HEADS, ids=str)
@pytest.mark.parametrize("rank", RANKS)
def test_every_length_across_chunks_and_spans_matches_the_naive_recurrence(
    rank: str, heads: tuple[int, int, int], documents: bool
) -> None:
    for length in (1, 2, 3, 4, 5, 8, 9, 17, 20):
        problem = draw(rank, heads, length, documents=documents)
        for got, wanted in zip(chunked(*problem.arguments()), naive(*problem.arguments()), strict=True):
            close(got, wanted)


@pytest.mark.parametrize("rank", RANKS)
def test_default_chunks_and_spans_match_the_naive_recurrence(rank: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MODULE, "SPAN", 2 * MODULE.CHUNK)
    for length in (MODULE.CHUNK - 1, MODULE.CHUNK, MODULE.CHUNK + 1, 3 * MODULE.CHUNK + 5):
        problem = draw(rank, (4, 2, 1), length, documents=True)
        for got, wanted in zip(chunked(*problem.arguments()), naive(*problem.arguments()), strict=True):
            close(got, wanted)


@pytest.mark.usefixtures("small", "ways")
@pytest.mark.parametrize("documents", [False, True])
@pytest.mark.parametrize(("rank", "steepness"), [("none", 0.0), ("head", 1.0), ("head", 60.0), ("channel", 1.0), ("channel", 60.0)])
def test_gradients_equal_those_of_the_naive_recurrence(rank: str, steepness: float, documents: bool) -> None:
    problem = draw(rank, (4, 2, 1), 19, documents=documents, steepness=steepness)
    answers = []
    for form in (chunked, naive):
        tensors = [tensor.clone().requires_grad_() for tensor in problem.tensors]
        output, state = form(*problem.arguments(tensors))
        answers.append(torch.autograd.grad(output.square().sum() + state.sum(), tensors))
    for got, wanted in zip(*answers, strict=True):
        close(got, wanted)


@pytest.mark.usefixtures("small", "ways")
@pytest.mark.parametrize("rank", RANKS)
def test_gradients_match_numerical_gradients(rank: str) -> None:
    problem = draw(rank, (2, 2, 1), 5, documents=True)

    def run(*tensors: Tensor) -> Any:
        return chunked(*problem.arguments(list(tensors)))

    assert_derivatives(run, problem.tensors)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("documents", [False, True])
@pytest.mark.parametrize("rank", ["none", "channel"])
@pytest.mark.parametrize("heads", HEADS, ids=str)
def test_gradients_are_right_for_tensors_used_twice(rank: str, heads: tuple[int, int, int], documents: bool) -> None:
    """Gradients are right if keys are also queries, a value is used in two calls, two losses need one output, and backward runs
    twice.
    """
    problem, answers = draw(rank, heads, 11, documents=documents), []
    query, key, value, *decay, state = problem.tensors
    for form in (chunked, naive):
        both, shared, *others = tensors = [of.clone().requires_grad_() for of in (key, value, *decay, state)]
        queries = both.repeat_interleave(query.shape[2] // key.shape[2], dim=2)
        arguments = [queries, both, shared, *others]
        first, held = form(*problem.arguments(arguments))
        second, _ = form(*problem.arguments([*arguments[:-1], held]))
        loss = (first * second).sum() + first.square().sum()
        answers.append([*torch.autograd.grad(loss, tensors, retain_graph=True), *torch.autograd.grad(2 * loss, tensors)])
    for got, wanted in zip(*answers, strict=True):
        close(got, wanted)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("rank", ["none", "channel"])
def test_gradients_of_single_inputs_equal_those_of_all_inputs(rank: str) -> None:
    problem = draw(rank, (4, 2, 1), 11, documents=True)
    for index in range(len(problem.tensors)):
        answers = []
        for form in (chunked, naive):
            tensors = [of.clone() for of in problem.tensors]
            tensors[index].requires_grad_()
            output, state = form(*problem.arguments(tensors))
            answers.append(torch.autograd.grad(output.square().sum() + state.sum(), tensors[index]))
        close(answers[0][0], answers[1][0])


@pytest.mark.parametrize("heads", HEADS, ids=str)
@pytest.mark.parametrize("block", [1, 2, 4])
def test_blocks_of_any_length_match_the_naive_recurrence(
    block: int, heads: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch, small: None
) -> None:
    monkeypatch.setattr(MODULE, "block_of", lambda log_decay, chunk: min(block, chunk))
    for length in (1, 2, 3, 4, 7, 8, 19):
        problem, answers = draw("channel", heads, length, documents=True), []
        for form in (chunked, naive):
            tensors = [tensor.clone().requires_grad_() for tensor in problem.tensors]
            output, state = form(*problem.arguments(tensors))
            answers.append((output, state, *torch.autograd.grad(output.square().sum() + state.sum(), tensors)))
        for got, wanted in zip(*answers, strict=True):
            close(got, wanted)


@pytest.mark.parametrize("rank", ["head", "channel"])
@pytest.mark.parametrize("steepness", [0.5, 3.0, 12.0, 40.0, 300.0, 1e4])
def test_float32_is_accurate_for_any_decay(rank: str, steepness: float, blocks: list[int]) -> None:
    """Small decays stay exact between steep ones, although decays are summed over a chunk."""
    problem = draw(rank, (2, 2, 2), 150, steepness=steepness)
    assert problem.log_decay is not None
    problem.log_decay[:, 1::3] *= 1e-3
    single = [tensor.float() for tensor in problem.tensors]
    for got, wanted in zip(chunked(*problem.arguments(single)), naive(*problem.arguments()), strict=True):
        assert got.dtype == torch.float32
        close(got.double(), wanted, 5e-5)
    # Below e^-40 over a chunk of 64 it begins as shorter blocks.
    assert blocks == ([longest(problem.log_decay)] if rank == "channel" else [])
    assert rank == "head" or (blocks == [64]) == (steepness < 1)


@pytest.mark.parametrize("steepness", [1.0, 8.0, 300.0])
def test_gradients_in_float32_are_accurate_for_any_decay(steepness: float) -> None:
    problem, answers = draw("channel", (2, 2, 2), 150, steepness=steepness), []
    for form, dtype in ((chunked, torch.float32), (naive, torch.float64)):
        tensors = [tensor.to(dtype).requires_grad_() for tensor in problem.tensors]
        output, state = form(*problem.arguments(tensors))
        answers.append(torch.autograd.grad(output.square().sum() + state.sum(), tensors))
    for got, wanted in zip(*answers, strict=True):
        close(got.double(), wanted, 1e-4)


def test_a_decay_of_0_has_the_gradients_of_the_definition(blocks: list[int]) -> None:
    """A decay of 0, with the logarithm -inf, has the gradients of the definition and no NaN."""
    problem, answers = draw("channel", (2, 2, 2), 100), []
    assert problem.log_decay is not None
    problem.log_decay[torch.rand_like(problem.log_decay) < 0.1] = -torch.inf
    for form in (chunked, naive):
        tensors = [tensor.clone().requires_grad_() for tensor in problem.tensors]
        output, state = form(*problem.arguments(tensors))
        answers.append((output, state, *torch.autograd.grad(output.square().sum() + state.sum(), tensors)))
    for got, wanted in zip(*answers, strict=True):
        close(got, wanted)
    assert blocks == [1]


def test_decays_just_above_the_steepest_block_do_not_overflow(blocks: list[int]) -> None:
    problem = draw("channel", (2, 2, 2), 64)
    problem = type(problem)(**{**vars(problem), "log_decay": torch.full((2, 64, 2, 3), -39.9 / 64, dtype=torch.float64)})
    single = [tensor.float() for tensor in problem.tensors]
    for got, wanted in zip(chunked(*problem.arguments(single)), naive(*problem.arguments()), strict=True):
        close(got.double(), wanted, 1e-4)
    assert blocks == [64]
