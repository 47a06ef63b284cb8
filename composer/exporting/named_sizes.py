"""Sizes that a head of a file has as constants by name, such as the size of its window: one place to change each."""

from __future__ import annotations

from typing import Any

from blocks.legend import Shape
from blocks.memories.base import Memory
from composer.exporting.call_recording import SizeNumber, give_operators
from composer.graph.composition import HeadSpec

MAP_SIZE = "map_size"


class NamedSize(int):
    """A number with its expression in the file. Its text is the expression, and so is that of what is computed from it."""

    expression: str

    def __new__(cls, number: int, expression: str = "") -> NamedSize:
        size = super().__new__(cls, number)
        size.expression = expression or str(number)
        return size

    def __repr__(self) -> str:
        return self.expression

    def __eq__(self, other: object) -> bool:
        return int(self) == other

    def __hash__(self) -> int:
        """Another hash than that of an int, so that caches keep these heads apart from those of the model."""
        return hash((int(self), self.expression))

    def __deepcopy__(self, memo: dict[int, Any]) -> NamedSize:
        return self


def _with_text(symbol: str, left: int, right: int, number: int) -> Any:
    if isinstance(left, SizeNumber) or isinstance(right, SizeNumber):
        return NotImplemented
    return NamedSize(number, f"({left!r} {symbol} {right!r})")


give_operators(NamedSize, _with_text)


def sizes_of(head: HeadSpec, shape: Shape) -> dict[str, int]:
    """Return the sizes of memories of pairs, of convolutions and of learned feature maps, by their names in the file."""
    sizes = {f"{memory.called}_size": memory.declared_size for memory in head.memory if _has_size(memory)}
    sizes |= {} if head.conv is None else {"conv_size": head.conv.kernel}
    columns = _columns(head, shape)
    return sizes if columns is None else sizes | {MAP_SIZE: columns}


def with_named_sizes(head: HeadSpec, shape: Shape) -> HeadSpec:
    """Return the head with the sizes of ``sizes_of`` as ``NamedSize``."""
    memories = tuple(
        memory.model_copy(update={"size": NamedSize(memory.declared_size, f"self.{memory.called}_size")})
        if _has_size(memory)
        else memory
        for memory in head.memory
    )
    named: dict[str, Any] = {"memory": memories}
    if head.conv is not None:
        named["conv"] = head.conv.model_copy(update={"kernel": NamedSize(head.conv.kernel, "self.conv_size")})
    columns = _columns(head, shape)
    if head.feature_map is not None and columns is not None:
        named["feature_map"] = head.feature_map.model_copy(update={"dim": NamedSize(columns, f"self.{MAP_SIZE}")})
    return head.model_copy(update=named)


def _columns(head: HeadSpec, shape: Shape) -> int | None:
    """Return the columns of the matrix of the head's feature map; None where there is none."""
    return None if head.feature_map is None else getattr(head.feature_map.with_dim(shape), "dim", None)


def _has_size(memory: Memory) -> bool:
    return memory.bounded and memory.declared_size > 0
