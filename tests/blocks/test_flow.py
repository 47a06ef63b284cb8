"""Tokens give the last tokens of each row and of its current document, and pairs give which of them are present."""

from __future__ import annotations

import pytest
import torch

from blocks.flow import Pairs, Tokens
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
def test_tail_ends_at_each_rows_last_real_token(count: int) -> None:
    extended = random(4, count + 5, 2, 2)
    tail = ragged().tail(extended, count)
    for row, real in enumerate(REAL):
        assert torch.equal(tail[row], extended[row, real : real + count])
    assert torch.equal(Tokens(torch.zeros(4, 5, dtype=torch.int64)).tail(extended, count), extended[:, 5:])
    assert torch.equal(ragged().tail(torch.arange(count + 5).expand(4, -1), count)[1], torch.arange(3, 3 + count))


def test_tail_is_current_marks_entries_of_the_rows_last_document() -> None:
    tokens = ragged()
    assert tokens.last_segment().tolist() == [[2], [1], [0], [0]]
    current = tokens.tail_is_current(EARLIER)
    assert current is not None
    # Row by row: one token of the last document; all three; no token, so the state's own document goes on; the same with one token.
    assert current.tolist() == [[False, False, True], [True, True, True], [True, True, True], [True, True, True]]
    assert documents([2, 3]).last_segment().tolist() == [[1]]
    assert Tokens(torch.zeros(1, 2, dtype=torch.int64)).tail_is_current(EARLIER) is None


def test_extend_segment_assigns_earlier_entries_to_the_continued_document() -> None:
    extended = documents([2, 1]).extend_segment(2)
    assert extended is not None
    assert extended.tolist() == [[0, 0, 0, 0, 1]]
    assert Tokens(torch.zeros(1, 2, dtype=torch.int64)).extend_segment(2) is None


def test_pairs_are_present_if_their_position_is_not_negative() -> None:
    states = random(1, 3, 2, 4)
    assert Pairs(states, None, states, torch.tensor([[-1, 0, 7]])).present.tolist() == [[False, True, True]]


def test_each_document_is_computed_alone_and_once() -> None:
    tokens, states, lengths = ragged(), random(4, 5, 3), list[int]()

    def add_sum(document: torch.Tensor) -> tuple[torch.Tensor]:
        lengths.append(document.shape[1])
        return (document + document.sum(1, keepdim=True),)

    (output,) = tokens.each_document(add_sum, states)
    assert sum(lengths) == tokens.position.numel()
    assert tokens.segment is not None
    for row, segment in enumerate(tokens.segment):
        for inside in (segment == document for document in segment.unique()):
            torch.testing.assert_close(output[row, inside], states[row, inside] + states[row, inside].sum(0))
    (output,) = Tokens(tokens.position).each_document(add_sum, states)
    torch.testing.assert_close(output, states + states.sum(1, keepdim=True))
