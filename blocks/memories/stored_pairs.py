"""The base of memories that store pairs unchanged and evict them one by one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar, Literal, Self

from blocks.flow import Pairs
from blocks.legend import Bool, Shape, Tensor
from blocks.memories.base import Memory
from blocks.operation import Slot, State
from blocks.positions import Position

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
    return Pairs(*pair, numbers=numbers, by=rotation, known_present=known_present)


def state_of(pairs: Pairs, like: State) -> State:
    """Return the state of these pairs. Numbers that the pairs lack are 0."""
    every = {"key": pairs.key, "value": pairs.value, "position": pairs.position, **pairs.numbers}
    if pairs.convolved is not None:
        every["convolved"] = pairs.convolved
    return {name: every[name] if name in every else _zeros(pairs, entries) for name, entries in like.items()}


def _zeros(pairs: Pairs, like: Tensor) -> Tensor:
    return like.new_zeros(*pairs.value.shape[:2], *like.shape[2:])


def move_pairs(state: State, rotation: Position, offset: int) -> State:
    """Return pairs at positions that are later by ``offset``, with their keys rotated to these."""
    position = state["position"]
    key = rotation.rotate(rotation.rotate_back(state["key"], position), position + offset)
    return {"key": key, "value": state["value"], "position": position + offset}


def keep_present(pairs: Pairs, present: Bool[Tensor, "B E"]) -> Pairs:
    """Mark some of the pairs as absent."""
    return replace(pairs, position=pairs.position.masked_fill(~present, -1))
