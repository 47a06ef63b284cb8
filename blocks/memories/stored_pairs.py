"""The base of memories that store pairs unchanged and evict them one by one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar, Literal, Self

from blocks.flow import Pairs, Tokens
from blocks.legend import Bool, Int, Shape, Shaped, Tensor, torch
from blocks.memories.base import Memory
from blocks.operation import Slot, State
from blocks.positions import Position
from blocks.tensors import in_all_rows, may_read_numbers, take

PAIR = frozenset({"key", "value", "position", "convolved"})
"""The tensors of a state that belong to pairs. All others are numbers of each pair."""


class Holding(Memory):
    """Softmax over some pairs. Evicted pairs enter the memory below, or are discarded. Keys are stored rotated."""

    bounded: ClassVar[bool] = True
    exact: ClassVar[bool] = True
    incidental: ClassVar[frozenset[str]] = Memory.incidental | {"size", "evict"}
    evict: Literal["next", "drop"] = "next"
    """next: evicted pairs enter the next memory. drop: they are discarded."""

    @property
    def drops(self) -> bool:
        return self.evict == "drop"

    def dropping(self) -> Self:
        return self.model_copy(update={"evict": "drop"})

    def slots(self, shape: Shape, count: int, order: Literal["any", "ring", "first"] = "any") -> dict[str, Slot]:
        """Return the state of this many pairs, with everything that belongs to them when they are evicted. order: that of
        positions, as in ``Slot``."""
        by_query_head = self.per_query_head
        pair = (count, shape.heads if by_query_head else shape.key_heads)
        slots = {"key": Slot((*pair, shape.head_dim), "pairs"), "value": Slot((*pair, shape.value_dim), "pairs")}
        slots["position"] = Slot(pair if by_query_head else pair[:1], "int64", -1, order=order)
        if not self.drops:
            if shape.convolved_heads:
                slots["convolved"] = Slot((count, shape.heads if by_query_head else shape.convolved_heads, shape.head_dim), "pairs")
            slots |= {
                number.name: Slot((count, shape.heads if by_query_head else number.heads), "state") for number in shape.numbers
            }
        return slots


def pairs_of(state: Mapping[str, Tensor], rotation: Position, *, known_present: bool = False) -> Pairs:
    """Return the contents of a state, or some of them, as pairs. rotation: of their keys. known_present: as in ``Pairs``."""
    numbers = {name: entries for name, entries in state.items() if name not in PAIR}
    pair = state["key"], state.get("convolved"), state["value"], state["position"]
    return Pairs(*pair, numbers=numbers, rotation=rotation, known_present=known_present)


def state_of(pairs: Pairs, like: State) -> State:
    """Return the state of these pairs. Numbers that the pairs lack are 0."""
    every = {"key": pairs.key, "value": pairs.value, "position": pairs.position, **pairs.numbers}
    if pairs.convolved is not None:
        every["convolved"] = pairs.convolved
    return {name: every[name] if name in every else _zeros(pairs, entries) for name, entries in like.items()}


def _zeros(pairs: Pairs, like: Tensor) -> Tensor:
    return like.new_zeros(*pairs.value.shape[:2], *like.shape[2:])


def keep_present(pairs: Pairs, present: Bool[Tensor, "B E"]) -> Pairs:
    """Mark some of the pairs as absent."""
    return replace(pairs, position=pairs.position.masked_fill(~present, -1))


# A state of the last ``size`` entries, one a token, in which each new entry overwrites the oldest. The entry of a row's token t is
# at index t mod size, so a step of decode writes one entry and moves none. Longer calls lay the entries out by age first, and
# restore the order at the end.


RingSlot = Int[Tensor, "1"] | Int[Tensor, " B"]
"""Index of the oldest entry: one number if it is known to be the same in every row; otherwise one per row."""


def place_of(tokens: Tokens, size: int) -> RingSlot:
    """Index of the only token of a call: that of the oldest entry, which it overwrites."""
    return tokens.once(("ring", size), lambda: _ring_place(tokens.in_row(), size))


def _ring_place(index: Int[Tensor, "B 1"], size: int) -> RingSlot:
    if index.shape[0] == 1 or (may_read_numbers(index) and len({row for (row,) in index.tolist()}) == 1):
        return index[0] % size
    return in_all_rows(index % size, size)[:, 0]


def write_at(state: State, place: RingSlot, new: State, *, in_place: bool) -> State:
    """Return the entries with those of the only token of a call, B 1 …."""
    for name, ring in state.items():
        if new[name].dtype != ring.dtype:
            new = new | {name: new[name].to(ring.dtype)}
    return {name: with_entry(ring, place, new[name], in_place=in_place) for name, ring in state.items()}


def entry_at(ring: Shaped[Tensor, "B W ..."], place: RingSlot) -> Shaped[Tensor, "B 1 ..."]:
    """Return each row's entry at the place."""
    if place.shape[0] == 1:
        return ring.index_select(1, place)
    return ring.flatten(0, 1).index_select(0, place).unsqueeze(1)


def with_entry(
    ring: Shaped[Tensor, "B W ..."], place: RingSlot, new: Shaped[Tensor, "B 1 ..."], *, in_place: bool
) -> Shaped[Tensor, "B W ..."]:
    """Return the entries with ``new`` at the place."""
    if place.shape[0] == 1:
        return ring.index_copy_(1, place, new) if in_place else ring.index_copy(1, place, new)
    flat = ring.flatten(0, 1)
    if in_place:
        flat.index_copy_(0, place, new.flatten(0, 1))
        return ring
    return flat.index_copy(0, place, new.flatten(0, 1)).view_as(ring)


def by_age(ring: Shaped[Tensor, "B W ..."], tokens: Tokens) -> Shaped[Tensor, "B W ..."]:
    """Return the entries that a call is handed, the oldest first."""
    size, first = ring.shape[1], tokens.in_row()[:, :1]
    return take(ring, tokens.once(("age", size), lambda: ring_order(first, size)))


def by_place(entries: Shaped[Tensor, "B W ..."], tokens: Tokens) -> Shaped[Tensor, "B W ..."]:
    """Return the entries that a call hands on, the oldest first, in their places."""
    size = entries.shape[1]
    return take(entries, tokens.once(("place", size), lambda: ring_order(-next_place(tokens.in_row(), tokens.valid), size)))


def ring_order(shift: Int[Tensor, "B 1"], size: int) -> Int[Tensor, "B W"]:
    """Return the entries of a ring, counted from ``shift``."""
    return (torch.arange(size, device=shift.device) + shift) % size


def next_place(place: Int[Tensor, "B T"], valid: Bool[Tensor, "B T"] | None) -> Int[Tensor, "B 1"]:
    """Return the place in its row of the token after the last real one. place: of the call's tokens."""
    if valid is None:
        return place[:, -1:] + 1
    count = valid.sum(1, keepdim=True)
    return place.gather(1, (count - 1).clamp(min=0)) + (count > 0)
