"""A state of the last ``size`` entries, one a token, in which each new one takes the place of the oldest.

The entry of a row's token t stands at place t mod size, so a step of decode writes one entry and moves none. Longer calls
lay the entries out by age first, and put them back in their places at the end.
"""

from __future__ import annotations

from blocks.flow import Tokens
from blocks.legend import Int, Shaped, Tensor, torch
from blocks.part import State
from blocks.tensors import as_dtype, in_all_rows, may_look, take

RingSlot = Int[Tensor, "1"] | Int[Tensor, " B"]
"""Of the oldest entry: one number where it is known to be the same in every row, else where all rows stand one behind the other."""


def place_of(tokens: Tokens, size: int) -> RingSlot:
    """Where the only token of a call stands, in the place of the oldest entry until then."""
    return tokens.once(("ring", size), lambda: _place(tokens.in_row(), size))


def _place(index: Int[Tensor, "B 1"], size: int) -> RingSlot:
    if index.shape[0] == 1 or (may_look(index) and len({row for (row,) in index.tolist()}) == 1):
        return index[0] % size
    return in_all_rows(index % size, size)[:, 0]


def oldest(state: State, place: RingSlot) -> State:
    """The entries B 1 … that the only token of a call is written over."""
    if place.shape[0] == 1:
        return {name: held.index_select(1, place) for name, held in state.items()}
    return {name: held.flatten(0, 1).index_select(0, place).unsqueeze(1) for name, held in state.items()}


def written(state: State, place: RingSlot, new: State, *, in_place: bool) -> State:
    """The entries with those of the only token of a call, B 1 …."""
    carried: State = {}
    for name, held in state.items():
        if place.shape[0] == 1:
            one = as_dtype(new[name], held.dtype)
            carried[name] = held.index_copy_(1, place, one) if in_place else held.index_copy(1, place, one)
            continue
        flat, one = held.flatten(0, 1), new[name].flatten(0, 1).to(held.dtype)
        carried[name] = held if in_place else flat.index_copy(0, place, one).view_as(held)
        if in_place:
            flat.index_copy_(0, place, one)
    return carried


def by_age(held: Shaped[Tensor, "B W ..."], tokens: Tokens) -> Shaped[Tensor, "B W ..."]:
    """The entries that a call is handed, the oldest first."""
    return take(held, _order(tokens, "age", tokens.in_row()[:, :1], held.shape[1]))


def by_place(entries: Shaped[Tensor, "B W ..."], tokens: Tokens) -> Shaped[Tensor, "B W ..."]:
    """The entries that a call hands on, the oldest first, in their places."""
    return take(entries, _order(tokens, "place", -_next(tokens), entries.shape[1]))


def _next(tokens: Tokens) -> Int[Tensor, "B 1"]:
    """The place in its row of the token after the last real one."""
    if tokens.valid is None:
        return tokens.in_row()[:, -1:] + 1
    count = tokens.valid.sum(1, keepdim=True)
    return tokens.in_row().gather(1, (count - 1).clamp(min=0)) + (count > 0)


def _order(tokens: Tokens, name: str, shift: Int[Tensor, "B 1"], size: int) -> Int[Tensor, "B W"]:
    return tokens.once((name, size), lambda: (torch.arange(size, device=shift.device) + shift) % size)
