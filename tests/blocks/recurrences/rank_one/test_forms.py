"""The generalised delta rule equals its product of matrices, and every PyTorch form equals its definition, gradients included."""

from __future__ import annotations

import importlib
import itertools
import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from blocks.recurrences import delta
from blocks.recurrences.rank_one import DECAY_RANKS, FORMS, chunked, naive, step
from tests.blocks.recurrences.rank_one.problems import FEATURES, HEADS, RANKS, WIDTH, draw
from tests.blocks.support import assert_agree, assert_derivatives, assert_split, by_backend, close, owner, random

MODULE = importlib.import_module("blocks.recurrences.rank_one.chunked")


@pytest.mark.parametrize("documents", [False, True])
@pytest.mark.parametrize("heads", HEADS, ids=str)
@pytest.mark.parametrize("rank", RANKS)
def test_the_naive_recurrence_equals_the_sum_over_the_past(rank: str, heads: tuple[int, int, int], documents: bool) -> None:
    """S_t = P_1…t S_0 + Σ_s P_s+1…t k_sᵀ v_s, with P_a…b = M_b ⋯ M_a and M_u = D_u - w_uᵀ r_u as a matrix."""
    problem, length = draw(rank, heads, 6, documents=documents), 6
    output, state = naive(*problem.arguments())
    assert problem.removed is not None
    query_heads, state_heads, key_heads = heads
    for batch, t, head in itertools.product(range(2), range(length), range(query_heads)):
        own = owner(head, query_heads, state_heads)
        segment = torch.zeros(length, dtype=torch.int64) if problem.segment is None else problem.segment[batch]
        held = torch.zeros(FEATURES, WIDTH, dtype=torch.float64)
        passes = torch.eye(FEATURES, dtype=torch.float64)
        for s in range(t, -1, -1):
            if segment[s] != segment[t]:
                break
            held += passes @ problem.key[batch, s, own].outer(problem.value[batch, s, owner(own, state_heads, key_heads)])
            left = torch.ones(FEATURES, dtype=torch.float64)
            if problem.log_decay is not None:
                left = left * problem.log_decay[batch, s, own].exp()
            passes = passes @ (torch.diag(left) - problem.removed[batch, s, own].outer(problem.read[batch, s, own]))
        if segment[t] == 0:
            held += passes @ problem.state[batch, own]
        close(output[batch, t, head], problem.query[batch, t, head] @ held)
        if t == length - 1:
            close(state[batch, own], held)


@pytest.mark.parametrize("form", by_backend(FORMS))
def test_reading_by_the_decayed_key_equals_the_delta_rule(form: str) -> None:
    """With r = k D and w = β k, the recurrence is (I - β kᵀ k) D S + β kᵀ v."""
    problem = draw("channel", (4, 2, 1), 17, documents=True)
    assert problem.log_decay is not None
    key, rate = problem.read, 2 * torch.rand(2, 17, 2, dtype=torch.float64)
    written = rate[..., None] * key
    arguments = (problem.query, written, problem.value, key * problem.log_decay.exp(), None, problem.log_decay)
    actual = by_backend(FORMS)[form](*arguments, problem.segment, problem.state)
    wanted = delta.naive(problem.query, key, problem.value, rate, problem.log_decay, problem.segment, problem.state)
    for got, want in zip(actual, wanted, strict=True):
        close(got, want)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("apart", [False, True], ids=["the key", "w"])
@pytest.mark.parametrize("documents", [False, True])
@pytest.mark.parametrize("heads", HEADS, ids=str)
@pytest.mark.parametrize("rank", RANKS)
def test_every_length_across_chunks_and_spans_matches_the_naive_recurrence(
    rank: str, heads: tuple[int, int, int], documents: bool, apart: bool
) -> None:
    for length in (1, 2, 4, 5, 8, 9, 20):
        assert_agree(chunked, naive, draw(rank, heads, length, documents=documents, apart=apart))


@pytest.mark.parametrize("length", [63, 64, 65, 197])
@pytest.mark.parametrize("documents", [False, True])
def test_default_chunks_and_spans_match_the_naive_recurrence(documents: bool, length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MODULE, "SPAN", 2 * MODULE.CHUNK)
    assert_agree(chunked, naive, draw("channel", (4, 2, 1), length, documents=documents))


@pytest.mark.parametrize("documents", [False, True])
@pytest.mark.parametrize("heads", HEADS, ids=str)
@pytest.mark.parametrize("rank", RANKS)
def test_one_token_matches_the_naive_recurrence(rank: str, heads: tuple[int, int, int], documents: bool) -> None:
    for apart in (False, True):
        problem = draw(rank, heads, 1, documents=documents, apart=apart)
        assert_agree(step, naive, problem)
        with torch.no_grad():
            wanted = naive(*problem.arguments())
            actual = step(*problem.arguments([tensor.clone() for tensor in problem.tensors]), in_place=True)
            for got, want in zip(actual, wanted, strict=True):
                close(got, want)


@pytest.mark.parametrize("steepness", [60.0, 1e4])
def test_small_decays_are_exact_between_steep_decays(steepness: float) -> None:
    """Small decays stay exact between steep ones and tokens with a decay of 0."""
    problem = draw("channel", (4, 2, 1), 130, documents=True, steepness=steepness)
    assert problem.log_decay is not None
    problem.log_decay[:, 1::3] *= 1e-3
    assert_agree(chunked, naive, problem)
    problem.log_decay[:, [0, 5, 6, 40, 66]] = -math.inf
    assert_agree(chunked, naive, problem)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("apart", [False, True], ids=["the key", "w"])
def test_gradients_match_numerical_gradients(apart: bool) -> None:
    problem = draw("channel", (2, 2, 1), 5, documents=True, features=2, apart=apart)

    def run(*tensors: Tensor) -> Any:
        return chunked(*problem.arguments(list(tensors)))

    assert_derivatives(run, problem.tensors, fast_mode=True)


@pytest.mark.parametrize("cuts", [[1] * 11, [4, 7], [1, 9, 1]], ids=str)
@pytest.mark.parametrize("form", by_backend(FORMS))
def test_any_split_equals_one_call(form: str, cuts: list[int]) -> None:
    problem = draw("channel", (4, 4, 2), 11, documents=True)
    assert_split(by_backend(FORMS)[form], naive(*problem.arguments()), problem.arguments(), cuts)


def test_float32_is_accurate_over_2048_tokens() -> None:
    """The inputs are as in RWKV-7: keys of any length, r of length 1, w up to r."""
    problem = draw("channel", (2, 2, 2), 2048, features=16, steepness=0.05)
    single = [tensor.float() for tensor in problem.tensors]
    wanted = naive(*problem.arguments([tensor.double() for tensor in single]))
    for got, want in zip(chunked(*problem.arguments(single)), wanted, strict=True):
        assert got.dtype == torch.float32
        assert (got - want).abs().max() < 5e-6 * want.abs().max()


@pytest.mark.parametrize("form", by_backend(FORMS))
def test_orthonormal_keys_return_the_newest_value(form: str) -> None:
    """Orthonormal keys that erase everything return the newer value, whatever the length of the written key."""
    keys = torch.linalg.qr(random(1, 8, 8)).Q
    key = torch.cat((keys, keys[:, :3]), dim=1)[:, :, None]
    value, state = random(1, 11, 1, 5), torch.zeros(1, 1, 8, 5, dtype=torch.float64)
    output, held = by_backend(FORMS)[form](key, 2 * key, value, key, key, None, None, state)
    close(output, 2 * value, 1e-12)
    close(keys @ held[:, 0], 2 * torch.cat((value[:, 8:, 0], value[:, 3:8, 0]), dim=1), 1e-12)


def test_the_tests_cover_every_rank_of_decay() -> None:
    assert set(RANKS) == DECAY_RANKS


def test_a_token_without_key_and_removal_only_decays_the_state() -> None:
    problem = draw("channel", (4, 2, 1), 5)
    assert problem.log_decay is not None
    assert problem.removed is not None
    empty = replace(problem, key=torch.zeros_like(problem.key), removed=torch.zeros_like(problem.removed))
    _, state = chunked(*empty.arguments())
    close(state, problem.state * problem.log_decay.sum(1).exp()[..., None])
