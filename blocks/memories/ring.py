"""A state of the last ``size`` entries, one a token, in which each new one takes the place of the oldest.

The entry of a token at position t stands at place t mod size, so a step of decode writes one entry and moves none. Longer calls
lay the entries out by age first, and put them back in their places at the end.
"""

from __future__ import annotations

from blocks.flow import Tokens, in_all_rows, take
from blocks.legend import Int, Shaped, Tensor, torch
from blocks.part import State


def place_of(tokens: Tokens, size: int) -> Int[Tensor, " B"]:
    """Where the only token of a call stands, all rows one behind the other: the place of the oldest entry until then."""
    return tokens.once(("ring", size), lambda: in_all_rows(tokens.position % size, size)[:, 0])


def oldest(state: State, place: Int[Tensor, " B"]) -> State:
    """The entries B 1 … that the only token of a call is written over."""
    return {name: held.flatten(0, 1).index_select(0, place).unsqueeze(1) for name, held in state.items()}


def written(state: State, place: Int[Tensor, " B"], new: State, *, in_place: bool) -> State:
    """The entries with those of the only token of a call, B 1 …."""
    carried: State = {}
    for name, held in state.items():
        flat, one = held.flatten(0, 1), new[name].flatten(0, 1).to(held.dtype)
        carried[name] = held if in_place else flat.index_copy(0, place, one).view_as(held)
        if in_place:
            flat.index_copy_(0, place, one)
    return carried


def by_age(held: Shaped[Tensor, "B W ..."], tokens: Tokens) -> Shaped[Tensor, "B W ..."]:
    """The entries that a call is handed, the oldest first."""
    return take(held, _order(tokens, "age", tokens.position[:, :1], held.shape[1]))


def by_place(entries: Shaped[Tensor, "B W ..."], tokens: Tokens) -> Shaped[Tensor, "B W ..."]:
    """The entries that a call hands on, the oldest first, in their places."""
    return take(entries, _order(tokens, "place", -tokens.next_position(), entries.shape[1]))


def _order(tokens: Tokens, name: str, shift: Int[Tensor, "B 1"], size: int) -> Int[Tensor, "B W"]:
    return tokens.once((name, size), lambda: (torch.arange(size, device=shift.device) + shift) % size)
