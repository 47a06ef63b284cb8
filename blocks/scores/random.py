"""Chance, the control of all other scores."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from blocks.legend import Float, Int, Tensor, torch
from blocks.scores.base import Contenders, Score


class Random(Score):
    """A number that follows from the seed, the layer, the head and the position alone, the same however a sequence is split."""

    equation: ClassVar[str] = "u(seed, layer, head, t), uniform in [0, 1)"
    source: ClassVar[str] = "this project; splitmix64: Steele et al. 2014"
    by_position: ClassVar[bool] = True
    kind: Literal["random"] = "random"
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0

    def score(self, pairs: Contenders) -> Float[Tensor, "B E H"]:
        return counter_uniform(self.seed, *pairs.place, pairs.position)


def counter_uniform(seed: int, layer: int, first_head: int, position: Int[Tensor, "B E H"]) -> Float[Tensor, "B E H"]:
    """Return a number in [0, 1) for each (seed, layer, head, position), the same in every call: splitmix64 of the counter.
    first_head: the index in its layer of the first of these heads."""
    head = torch.arange(first_head, first_head + position.shape[2], device=position.device)
    bits = _mix(torch.full_like(position, seed))
    for count in (layer, head, position):
        bits = _mix(bits + count)
    return (bits >> 11 & (1 << 53) - 1).double() * 2.0**-53


def _mix(bits: Int[Tensor, "B E H"]) -> Int[Tensor, "B E H"]:
    """Splitmix64's step (Steele et al. 2014); int64 wraps as its uint64 does."""
    bits = bits + _to_signed(0x9E3779B97F4A7C15)
    bits = (bits ^ _shift_right(bits, 30)) * _to_signed(0xBF58476D1CE4E5B9)
    bits = (bits ^ _shift_right(bits, 27)) * _to_signed(0x94D049BB133111EB)
    return bits ^ _shift_right(bits, 31)


def _shift_right(bits: Tensor, count: int) -> Tensor:
    """Return a shift to the right that fills with zeros; int64's own fills with the sign."""
    return bits >> count & (1 << 64 - count) - 1


def _to_signed(bits: int) -> int:
    return bits - (1 << 64) if bits >> 63 else bits
