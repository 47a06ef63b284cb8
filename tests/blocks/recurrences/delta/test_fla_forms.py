"""The delta rule on fla's kernels equals its definition: gradients, initial states, shared heads, documents, splits, one step."""

from __future__ import annotations

import pytest
import torch

import tests.interpreter  # noqa: F401 - the kernels run in it
from blocks.operation import Setting
from blocks.recurrences.delta import naive
from blocks.recurrences.delta.fla_forms import chunked, obstacle, step
from tests.blocks.recurrences.delta.problems import RANKS, draw
from tests.blocks.recurrences.kernels import CLOSE, compared
from tests.laws.cases import SMALL

LONGER = 67
"""Than a chunk, and odd."""


@pytest.mark.parametrize("rank", RANKS)
def test_a_split_sequence_from_a_state_matches_the_definition(rank: str) -> None:
    problem = draw(rank, (2, 1, 1), LONGER, batch=1)
    tensors = (problem.query, problem.key, problem.value, problem.rate, problem.log_decay, problem.state)
    compared(naive, chunked, tensors, None, 65)


@pytest.mark.parametrize("rank", RANKS)
def test_rows_of_documents_match_the_definition(rank: str) -> None:
    problem = draw(rank, (2, 2, 1), 21, documents=True)
    assert problem.segment is not None
    assert problem.segment[:, -1].min() > 1
    tensors = (problem.query, problem.key, problem.value, problem.rate, problem.log_decay, problem.state)
    compared(naive, chunked, tensors, problem.segment, 0)


@pytest.mark.parametrize("rank", RANKS)
def test_a_decode_step_matches_the_definition(rank: str) -> None:
    for documents in (False, True):
        problem = draw(rank, (4, 4, 2), 1, documents=documents)
        inputs = problem.query, problem.key, problem.value, problem.rate, problem.log_decay
        wanted = naive(*inputs, problem.segment, problem.state)
        actual = step(*(None if of is None else of.float() for of in inputs), problem.segment, problem.state.float())
        for first, other in zip(actual, wanted, strict=True):
            torch.testing.assert_close(first.double(), other, rtol=CLOSE, atol=CLOSE)


def test_a_step_without_a_pair_only_decays_and_reads() -> None:
    problem = draw("head", (2, 2, 2), 1)
    query, decay, state = (of.float() for of in (problem.query, problem.log_decay, problem.state) if of is not None)
    output, left = step(query, None, None, None, decay, None, state)
    torch.testing.assert_close(left, state * decay[:, 0, :, None, None].exp(), rtol=CLOSE, atol=CLOSE)
    torch.testing.assert_close(output[:, 0], torch.einsum("bhf,bhfv->bhv", query[:, 0], left), rtol=CLOSE, atol=CLOSE)


def test_more_features_than_the_kernel_supports_are_an_obstacle() -> None:
    from dataclasses import replace

    shape = replace(SMALL.shape(4), features=256)
    assert obstacle(Setting("cuda", shape=shape)) is None
    assert obstacle(Setting("cuda", shape=replace(shape, features=257))) == "its kernel supports 256 features at most"
