"""Tokens know the tail of each row and which of it is the current document; heads are repeated in consecutive groups; a norm is the
same with gradients and without."""

from __future__ import annotations

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from blocks.flow import Pairs, Tokens, accumulating, repeat_heads, rms_norm
from tests.blocks.support import documents, random

EARLIER = 3
SEGMENT = torch.tensor([[0, 0, 1, 1, 2], [1, 1, 1, 1, 1], [1, 1, 1, 1, 1], [0, 1, 1, 1, 1]])
REAL = [5, 3, 0, 1]


def ragged() -> Tokens:
    valid = torch.arange(5) < torch.tensor(REAL)[:, None]
    # Padding belongs to the document before it.
    segment = torch.stack(
        [row if real == 5 else torch.where(valid[index], row, row[max(real - 1, 0)])
         for index, (row, real) in enumerate(zip(SEGMENT, REAL, strict=True))]
    )  # fmt: skip
    return Tokens(torch.zeros(4, 5, dtype=torch.int64), segment, valid)


@pytest.mark.parametrize("count", [0, 1, EARLIER])
def test_the_tail_ends_at_each_rows_last_real_token(count: int) -> None:
    extended = random(4, count + 5, 2, 2)
    tail = ragged().tail(extended, count)
    for row, real in enumerate(REAL):
        assert torch.equal(tail[row], extended[row, real : real + count])
    assert torch.equal(Tokens(torch.zeros(4, 5, dtype=torch.int64)).tail(extended, count), extended[:, 5:])
    assert torch.equal(ragged().tail(torch.arange(count + 5).expand(4, -1), count)[1], torch.arange(3, 3 + count))


def test_the_tail_knows_its_document() -> None:
    tokens = ragged()
    assert tokens.last_segment().tolist() == [[2], [1], [0], [0]]
    current = tokens.tail_is_current(EARLIER)
    assert current is not None
    # Row by row: one token of the last document; all three; no token, so the state's own document goes on; the same with one token.
    assert current.tolist() == [[False, False, True], [True, True, True], [True, True, True], [True, True, True]]
    assert documents([2, 3]).last_segment().tolist() == [[1]]
    assert Tokens(torch.zeros(1, 2, dtype=torch.int64)).tail_is_current(EARLIER) is None


def test_earlier_entries_belong_to_the_document_that_is_continued() -> None:
    extended = documents([2, 1]).extended_segment(2)
    assert extended is not None
    assert extended.tolist() == [[0, 0, 0, 0, 1]]
    assert Tokens(torch.zeros(1, 2, dtype=torch.int64)).extended_segment(2) is None


def test_a_pair_is_present_where_it_has_a_position() -> None:
    states = random(1, 3, 2, 4)
    assert Pairs(states, states, states, torch.tensor([[-1, 0, 7]])).present.tolist() == [[False, True, True]]


def test_sums_are_kept_in_float32_or_better() -> None:
    kinds = {
        torch.bfloat16: torch.float32,
        torch.float16: torch.float32,
        torch.float32: torch.float32,
        torch.float64: torch.float64,
    }
    assert {kind: accumulating(kind) for kind in kinds} == kinds


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("width", [4, 8192])
def test_a_norm_without_gradients_is_the_one_with_them(width: int, kind: torch.dtype) -> None:
    """Also of numbers beside which epsilon is large, of none but zeros, and where neither states nor weight are changed."""
    states, weight = random(4, 2, width), random(width)
    states[0] *= 1e-4
    states[1] = 0.0
    wanted = states / (states.square().mean(-1, keepdim=True) + 1e-6).sqrt() * weight
    states, weight = states.to(kind), weight.to(kind)
    before = states.clone(), weight.clone()
    within = {torch.bfloat16: 3e-2, torch.float32: 2e-6, torch.float64: 1e-12}[kind]
    for gradients in (True, False):
        with torch.set_grad_enabled(gradients):
            found = rms_norm(states, weight, 1e-6)
        assert found.dtype == kind
        torch.testing.assert_close(found.double(), wanted, rtol=within, atol=within)
    assert torch.equal(states, before[0])
    assert torch.equal(weight, before[1])


@torch.no_grad()
def test_a_norm_of_fake_tensors_leaves_none_behind() -> None:
    """What is made once for all norms of an epsilon is not made of these."""
    states, weight = random(3, 4), random(4)
    with FakeTensorMode() as fake:
        rms_norm(fake.from_tensor(states), fake.from_tensor(weight), 0.00321)
    assert type(rms_norm(states, weight, 0.00321)) is torch.Tensor


def test_consecutive_heads_share_a_key_head() -> None:
    states = torch.arange(2.0).view(1, 1, 2, 1)
    assert repeat_heads(states, 6).flatten().tolist() == [0, 0, 0, 1, 1, 1]
    assert repeat_heads(states, 2) is states
