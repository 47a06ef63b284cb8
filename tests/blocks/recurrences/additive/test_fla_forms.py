"""The additive recurrence on fla's kernels equals its definition: gradients, states, shared heads, documents, splits, one step."""

from __future__ import annotations

import math

import pytest
import torch

import tests.interpreter  # noqa: F401 - the kernels run in it
from blocks.fla_kernels import obstacle, step_obstacle
from blocks.operation import Setting
from blocks.recurrences.additive import FORMS, naive
from blocks.recurrences.additive.fla_forms import chunked, step
from tests.blocks.recurrences.additive.problems import RANKS, draw
from tests.blocks.recurrences.kernels import CLOSE, compared
from tests.laws.cases import SMALL

LONGER = 67
"""Than a chunk, and odd."""


@pytest.mark.parametrize("rank", RANKS)
def test_a_split_sequence_from_a_state_matches_the_definition(rank: str) -> None:
    problem = draw(rank, (2, 1, 1), LONGER, batch=1)
    compared(naive, chunked, (problem.query, problem.key, problem.value, problem.log_decay, problem.state), None, 65)


@pytest.mark.parametrize("rank", RANKS)
def test_rows_of_documents_match_the_definition(rank: str) -> None:
    """The first row starts a new document, the second row continues its state."""
    problem = draw(rank, (2, 2, 1), 21, documents=True)
    assert problem.segment is not None
    assert problem.segment[:, -1].min() > 1
    assert problem.segment[:, 0].tolist() == [1, 0]
    tensors = (problem.query, problem.key, problem.value, problem.log_decay, problem.state)
    compared(naive, chunked, tensors, problem.segment, 0)


def test_rows_of_documents_match_the_definition_in_inference_mode() -> None:
    """In inference mode tensors have no version counter, so document bounds are computed again."""
    problem = draw("head", (2, 2, 1), 21, documents=True)
    assert problem.segment is not None
    singles = [None if of is None else of.float() for of in (problem.query, problem.key, problem.value, problem.log_decay)]
    with torch.inference_mode():
        segment = problem.segment.clone()
        for _ in range(2):
            output, left = chunked(*singles, segment, problem.state.float())
            wanted, last = naive(problem.query, problem.key, problem.value, problem.log_decay, segment, problem.state)
            torch.testing.assert_close(output.double(), wanted, rtol=CLOSE, atol=CLOSE)
            torch.testing.assert_close(left.double(), last, rtol=CLOSE, atol=CLOSE)
            segment.clamp_(max=1)  # written over: what was a document of its own is one with that before it


@pytest.mark.parametrize("rank", RANKS)
def test_a_decode_step_matches_the_definition(rank: str) -> None:
    for documents in (False, True):
        problem = draw(rank, (4, 4, 2), 1, documents=documents)
        wanted = naive(*problem.arguments())
        singles = [None if of is None else of.float() for of in (problem.query, problem.key, problem.value, problem.log_decay)]
        actual = step(*singles, problem.segment, problem.state.float())
        for first, other in zip(actual, wanted, strict=True):
            torch.testing.assert_close(first.double(), other, rtol=CLOSE, atol=CLOSE)


def test_a_step_without_a_pair_only_decays_and_reads() -> None:
    problem = draw("head", (2, 2, 2), 1)
    query, decay, state = (of.float() for of in (problem.query, problem.log_decay, problem.state) if of is not None)
    output, left = step(query, None, None, decay, None, state)
    torch.testing.assert_close(left, state * decay[:, 0, :, None, None].exp(), rtol=CLOSE, atol=CLOSE)
    torch.testing.assert_close(output[:, 0], torch.einsum("bhf,bhfv->bhv", query[:, 0], left), rtol=CLOSE, atol=CLOSE)


def test_a_decay_of_minus_infinity_equals_a_very_steep_decay() -> None:
    """A decay of -inf leaves nothing of the state that float32 can represent, in forward and backward."""
    problem = draw("channel", (1, 1, 1), 9, batch=1)
    assert problem.log_decay is not None
    decay = problem.log_decay.clone()
    decay[:, 4] = -math.inf
    leaves = [of.float().requires_grad_() for of in (problem.query, problem.key, problem.value)]
    output, left = chunked(*leaves, decay.float(), None, problem.state.float())
    wanted, last = naive(problem.query, problem.key, problem.value, decay, None, problem.state)
    torch.testing.assert_close(output.double(), wanted, rtol=CLOSE, atol=CLOSE)
    torch.testing.assert_close(left.double(), last, rtol=CLOSE, atol=CLOSE)
    assert all(of.isfinite().all() for of in torch.autograd.grad(output.sum(), leaves))


def test_obstacles_name_unsupported_settings() -> None:
    by_decode = {form.decode: form for form in FORMS if form.backend == "fla"}
    assert (by_decode[False].obstacle, by_decode[True].obstacle) == (obstacle, step_obstacle)
    plain = Setting("cuda", "bfloat16")
    assert obstacle(plain) is None
    assert str(obstacle(Setting("cuda", "float16"))).startswith("sums over a long text leave the range of float16")
    assert str(obstacle(Setting("cuda", "float64"))) == "Triton's kernels do not support float64"
    assert str(obstacle(Setting("cuda", one_token=True))) == "its chunks are for several tokens"
    on_gpu = Setting("cuda", "bfloat16", one_token=True)
    assert step_obstacle(on_gpu) is None
    for setting, reason in (
        (Setting("cuda", one_token=True, gradients=True), "has no gradient"),
        (Setting("cuda", one_token=True, one_pair=False), "several pairs may arrive"),
        (Setting("cuda", one_token=True, shape=SMALL.shape(4)), None),
        (Setting("meta", one_token=True), "Triton runs on a GPU"),
    ):
        step_reason = step_obstacle(setting)
        assert step_reason is None if reason is None else reason in str(step_reason)
