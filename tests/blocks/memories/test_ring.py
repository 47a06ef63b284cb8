"""Writing a ring at one place for all rows, and at an index per row, gives the same ring."""

from __future__ import annotations

import pytest
import torch

from blocks.flow import Tokens
from blocks.memories.stored_pairs import entry_at, place_of, write_at

SIZE = 5


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("places", [[7, 7, 7], [7, 7, 12], [7, 8, 4]], ids=["alike", "alike in the ring", "not alike"])
def test_the_oldest_entry_is_returned_and_overwritten(places: list[int], in_place: bool) -> None:
    tokens = Tokens(torch.full((3, 1), 99), index=torch.tensor(places)[:, None])
    before = {"key": torch.arange(30.0).view(3, SIZE, 2), "position": torch.arange(15).view(3, SIZE)}
    state = {name: held.clone() for name, held in before.items()}
    new = {"key": -torch.ones(3, 1, 2), "position": tokens.position}
    slot = place_of(tokens, SIZE)
    assert slot.shape == (1 if len(set(places)) == 1 else 3,)
    evicted = {name: entry_at(entries, slot) for name, entries in state.items()}
    carried = write_at(state, slot, new, in_place=in_place)
    for name, held in before.items():
        expected = held.clone()
        for row, place in enumerate(places):
            assert torch.equal(evicted[name][row, 0], held[row, place % SIZE])
            expected[row, place % SIZE] = new[name][row, 0]
        assert torch.equal(carried[name], expected)
        assert (carried[name] is state[name]) == in_place
        assert in_place or torch.equal(state[name], held)
