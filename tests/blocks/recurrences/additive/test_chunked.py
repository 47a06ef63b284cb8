"""Chunks give what the definition gives, gradients included: across every border, for every decay however steep."""

from __future__ import annotations

import importlib
from typing import Any

import pytest
import torch
from torch import Tensor

from blocks.recurrences.additive import chunked, naive
from tests.blocks.recurrences.additive.problems import HEADS, RANKS, draw
from tests.blocks.support import close

MODULE = importlib.import_module("blocks.recurrences.additive.chunked")


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks of 4 (2 where it is steep) and spans of 8: twenty tokens have every border."""
    for name, size in (("CHUNK", 4), ("PAIRWISE_CHUNK", 2), ("SPAN", 8)):
        monkeypatch.setattr(MODULE, name, size)


@pytest.fixture
def steep(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Which spans took their exponents pair by pair."""
    answers, original = [], MODULE._steep

    def noted(log_decay: Tensor) -> bool:
        answers.append(original(log_decay))
        return answers[-1]

    monkeypatch.setattr(MODULE, "_steep", noted)
    return answers


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("documents", [False, True])
@pytest.mark.parametrize("heads", HEADS, ids=str)
@pytest.mark.parametrize("rank", RANKS)
def test_every_length_across_chunks_and_spans(rank: str, heads: tuple[int, int, int], documents: bool) -> None:
    for length in (1, 2, 3, 4, 5, 7, 8, 9, 12, 16, 17, 20):
        problem = draw(rank, heads, length, documents=documents)
        for got, wanted in zip(chunked(*problem.arguments()), naive(*problem.arguments()), strict=True):
            close(got, wanted)


@pytest.mark.parametrize("rank", RANKS)
def test_chunks_and_spans_as_they_are(rank: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MODULE, "SPAN", 2 * MODULE.CHUNK)
    for length in (MODULE.CHUNK - 1, MODULE.CHUNK, MODULE.CHUNK + 1, 3 * MODULE.CHUNK + 5):
        problem = draw(rank, (4, 2, 1), length, documents=True)
        for got, wanted in zip(chunked(*problem.arguments()), naive(*problem.arguments()), strict=True):
            close(got, wanted)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("documents", [False, True])
@pytest.mark.parametrize(("rank", "steepness"), [("none", 0.0), ("head", 1.0), ("head", 60.0), ("channel", 1.0), ("channel", 60.0)])
def test_gradients_are_those_of_the_definition(rank: str, steepness: float, documents: bool) -> None:
    problem = draw(rank, (4, 2, 1), 19, documents=documents, steepness=steepness)
    answers = []
    for form in (chunked, naive):
        tensors = [tensor.clone().requires_grad_() for tensor in problem.tensors]
        output, state = form(*problem.arguments(tensors))
        answers.append(torch.autograd.grad(output.square().sum() + state.sum(), tensors))
    for got, wanted in zip(*answers, strict=True):
        close(got, wanted)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("rank", RANKS)
def test_gradients_are_derivatives(rank: str) -> None:
    problem = draw(rank, (2, 2, 1), 5, documents=True)

    def run(*tensors: Tensor) -> Any:
        return chunked(*problem.arguments(list(tensors)))

    assert torch.autograd.gradcheck(run, [tensor.requires_grad_() for tensor in problem.tensors])


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize(("steepest", "pairwise"), [(float("inf"), True), (-float("inf"), False)])
def test_both_ways_to_take_the_exponents_agree(
    steepest: float, pairwise: bool, monkeypatch: pytest.MonkeyPatch, steep: list[bool]
) -> None:
    monkeypatch.setattr(MODULE, "STEEPEST", steepest)
    problem = draw("channel", (4, 4, 2), 19, documents=True)
    for got, wanted in zip(chunked(*problem.arguments()), naive(*problem.arguments()), strict=True):
        close(got, wanted)
    assert steep
    assert set(steep) == {pairwise}


@pytest.mark.parametrize("rank", ["head", "channel"])
@pytest.mark.parametrize("steepness", [0.5, 3.0, 40.0, 300.0, 1e4])
def test_float32_holds_at_any_steepness(rank: str, steepness: float, steep: list[bool]) -> None:
    """Gentle tokens among steep ones: a decay that is summed over a chunk must not drown the small ones behind it."""
    problem = draw(rank, (2, 2, 2), 150, steepness=steepness)
    assert problem.log_decay is not None
    problem.log_decay[:, 1::3] *= 1e-3
    single = [tensor.float() for tensor in problem.tensors]
    for got, wanted in zip(chunked(*problem.arguments(single)), naive(*problem.arguments()), strict=True):
        assert got.dtype == torch.float32
        close(got.double(), wanted, 5e-5)
    # Below e^-40 over a chunk of 64 the exponents of features are taken pair by pair.
    assert steep == ([steepness > 1] if rank == "channel" else [])


def test_nothing_overflows_just_above_the_steepest(steep: list[bool]) -> None:
    problem = draw("channel", (2, 2, 2), 64)
    problem = type(problem)(**{**vars(problem), "log_decay": torch.full((2, 64, 2, 3), -39.9 / 64, dtype=torch.float64)})
    single = [tensor.float() for tensor in problem.tensors]
    for got, wanted in zip(chunked(*problem.arguments(single)), naive(*problem.arguments()), strict=True):
        close(got.double(), wanted, 1e-4)
    assert steep == [False]
