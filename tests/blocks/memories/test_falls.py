"""Falls are cut out of a call where they happen, in the order of the pairs."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from blocks.flow import Pairs, Tokens
from blocks.memories.falls import spans
from tests.blocks.support import counted, random


def pairs(position: list[list[int]], arrival: list[list[int]] | None = None, **said: Any) -> Pairs:
    """One value a pair, the same as its key, of 2 key heads; its convolved key has the 4 query heads."""
    states = random(len(position), len(position[0]), 2, 3)
    numbers = {"rate": random(len(position), len(position[0]), 1), "error": random(len(position), len(position[0]), 4)}
    convolved = said.get("convolved", random(len(position), len(position[0]), 4, 3))
    arrivals = None if arrival is None else torch.tensor(arrival, dtype=torch.int64)
    return Pairs(
        states, states if convolved is None else convolved, states, torch.tensor(position, dtype=torch.int64), arrivals, numbers
    )


def cut(given: Pairs, tokens: Tokens) -> list[tuple[tuple[int, int], list[bool] | None, list[list[int]] | None]]:
    """The spans: first and last column, rows in which a document begins, and the positions that fall there."""
    found, (cuts, falls) = [], spans(given, tokens)
    for span, position in zip(cuts, falls.position.split([span.falls for span in cuts], dim=1), strict=True):
        begins = None if span.begins is None else span.begins.tolist()
        found.append(((span.columns.start, span.columns.stop), begins, position.tolist() if span.falls else None))
    return found


def test_nothing_falls_and_nothing_begins() -> None:
    assert cut(pairs([[-1, -1, -1]]), counted(1, 3)) == [((0, 3), None, None)]
    assert cut(pairs([[]], [[]]), counted(1, 3)) == [((0, 3), None, None)]


def test_a_pair_falls_in_its_own_column_unless_it_says_when() -> None:
    """Before the first fall is a span of its own; a row in which none falls has -1."""
    one_a_token = pairs([[-1, 0, -1, 1], [-1, 5, -1, -1]])
    assert cut(one_a_token, counted(2, 4)) == [((0, 1), None, None), ((1, 3), None, [[0], [5]]), ((3, 4), None, [[1], [-1]])]
    assert cut(pairs([[0, 1], [2, 3]]), counted(2, 2)) == [((0, 1), None, [[0], [2]]), ((1, 2), None, [[1], [3]])]


def test_several_fall_at_once_and_rows_have_as_many_as_they_have() -> None:
    """The third row's are absent: at their columns nothing falls, unless another row's do."""
    together = pairs([[0, 1, 2, 3], [4, 5, 6, 7], [-1, -1, -1, -1]], [[0, 0, 3, 3], [3, 3, 3, 5], [0, 1, 2, 2]])
    assert cut(together, counted(3, 6)) == [
        ((0, 3), None, [[0, 1], [-1, -1], [-1, -1]]),
        ((3, 5), None, [[2, 3, -1], [4, 5, 6], [-1, -1, -1]]),
        ((5, 6), None, [[-1], [7], [-1]]),
    ]


def test_documents_begin_in_some_rows() -> None:
    """A document that begins at the first token, one in the middle, one together with a fall; a state's own begins nothing."""
    segment = torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 2, 2]])
    tokens = Tokens(torch.zeros(2, 5, dtype=torch.int64), segment)
    assert cut(pairs([[-1, -1, -1, 0, -1], [-1, 1, -1, -1, -1]]), tokens) == [
        ((0, 1), [False, True], None),
        ((1, 2), None, [[-1], [1]]),
        ((2, 3), [True, False], None),
        ((3, 5), [False, True], [[0], [-1]]),
    ]
    assert cut(pairs([[-1] * 5] * 2), Tokens(tokens.position, torch.zeros_like(segment))) == [((0, 5), None, None)]


@pytest.mark.parametrize("arrival", [None, [[0, 1, 1], [1, 1, 2]]], ids=["one a token", "together"])
@pytest.mark.parametrize("convolved", [False, True])
def test_a_pair_falls_with_all_that_it_is(convolved: bool, arrival: list[list[int]] | None) -> None:
    given = pairs([[0, 1, 2], [3, 4, 5]], arrival, **({} if convolved else {"convolved": None}))
    _, falls = spans(given, counted(2, 3))
    assert (falls.convolved is falls.key) is not convolved
    assert (falls.position >= 0).sum() == 6
    for row, place in (falls.position >= 0).nonzero().tolist():
        (source,) = (given.position[row] == falls.position[row, place]).nonzero()[:, 0].tolist()
        for those, these in ((falls.key, given.key), (falls.convolved, given.convolved), (falls.value, given.value)):
            assert torch.equal(those[row, place], these[row, source])
        for name, numbers in given.numbers.items():
            assert torch.equal(falls.numbers[name][row, place], numbers[row, source])


def test_what_falls_out_of_a_cache_has_a_position_for_each_head() -> None:
    """Where none of them falls, nothing does."""
    states, position = random(1, 3, 4, 3), torch.tensor([[[0, -1, 1, 0], [2, 2, -1, 3], [-1, -1, -1, -1]]])
    found = cut(Pairs(states, states, states, position), counted(1, 3))
    assert found == [((0, 1), None, [[[0, -1, 1, 0]]]), ((1, 3), None, [[[2, 2, -1, 3]]])]
