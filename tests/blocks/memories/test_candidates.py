"""Candidate pairs of a cache are laid out head by head. The layout changes no result, and each pair counts between its two
evictions.
"""

from __future__ import annotations

from itertools import product

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from blocks.flow import Tokens
from blocks.memories.candidates import HeadEntries, by_heads, concatenate_by_heads, eviction_bias, select, select_by_heads
from tests.blocks.support import random


def draw_pairs(entries: int) -> HeadEntries:
    """Return pairs of 2 rows and 3 heads."""
    return {"key": random(2, entries, 3, 4), "value": random(2, entries, 3, 5), "position": torch.randint(-1, 9, (2, entries, 3))}


def of_one_head_together(tensor: torch.Tensor) -> bool:
    return tensor.transpose(1, 2).is_contiguous()


def test_the_layout_by_heads_selects_the_same_entries() -> None:
    first, later = draw_pairs(6), draw_pairs(2)
    index = torch.stack([torch.randperm(8)[:5] for _ in range(6)]).view(2, 3, 5).transpose(1, 2)
    every = {name: concatenate_by_heads(by_heads(entries), later[name]) for name, entries in first.items()}
    assert all(of_one_head_together(entries) for entries in every.values())
    wanted = select({name: torch.cat((entries, later[name]), dim=1) for name, entries in first.items()}, index)
    actual = select_by_heads(every, index)
    for name, entries in actual.items():
        assert torch.equal(entries, wanted[name])
        assert of_one_head_together(entries)


@pytest.mark.parametrize("documents", [False, True])
@given(size=st.integers(0, 4), max_per_token=st.integers(1, 3), groups=st.integers(1, 4), seed=st.integers(0, 2**31))
def test_pairs_are_visible_between_arrival_and_eviction(
    documents: bool, size: int, max_per_token: int, groups: int, seed: int
) -> None:
    """A pair counts for a token if it has entered by the token's column, was not evicted again, and belongs to its document."""
    torch.manual_seed(seed)
    entries, length = size + max_per_token * groups, max_per_token * groups
    pairs = draw_pairs(entries)
    columns = torch.randint(0, length, (2, groups)).sort(dim=1).values
    evictions = columns.repeat_interleave(max_per_token, dim=1)
    left = torch.randint(1, groups + 2, (2, entries, 3))
    at, tokens = torch.arange(length).expand(2, -1), Tokens(torch.arange(length).expand(2, -1))
    segment: list[list[int]] = []
    if documents:
        tokens = Tokens(tokens.position, torch.randint(0, 2, (2, length)).cumsum(1))
        assert tokens.segment is not None
        segment = tokens.segment.tolist()
        pairs["segment"] = torch.randint(0, 3, (2, entries, 3))
    result = eviction_bias(pairs, at, evictions, max_per_token, left, tokens)
    assert result.shape == (2, 3, length, entries)
    facts = {name: pairs[name].tolist() for name in pairs.keys() & {"position", "segment"}}
    numbers, leaves, hides = left.tolist(), columns.tolist(), result.tolist()
    for row, head, token, entry in product(range(2), range(3), range(length), range(entries)):
        came = -1 if entry < size else leaves[row][(entry - size) // max_per_token]
        number = numbers[row][entry][head]
        goes = length if number > groups else leaves[row][number - 1]
        seen = came <= token < goes and facts["position"][row][entry][head] >= 0
        if entry >= size and number <= (entry - size) // max_per_token + 1:
            seen = False  # it falls on as it falls in, or before, which no cache does
        if documents:
            seen = seen and facts["segment"][row][entry][head] == segment[row][token]
        assert hides[row][head][token][entry] == (0.0 if seen else -torch.inf)
