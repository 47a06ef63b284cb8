"""What a pair is worth to a sparse cache: of those that compete for its places, the largest scores stay."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from blocks.legend import Float, Int, Tensor
from blocks.part import Part

LARGEST = 40.0
"""Exponents of the weights that are compared stop here, where squares still fit float32."""


@dataclass(frozen=True)
class Contenders:
    """Pairs that compete for a place, each query head's own; -1 is the position of none.

    answered: where the score reads the state, what that answers to each pair's own key. errors: where it reads the window, the
    pair's errors there, summed over the queries that saw it. place: the layer, and the first of these heads in it.
    """

    position: Int[Tensor, "B E H"]
    value: Float[Tensor, "B E H D"]
    answered: Float[Tensor, "B E H D"] | None
    errors: Float[Tensor, "B E H"] | None
    place: tuple[int, int]


class Score(Part):
    """A number for each pair; how it comes about is not differentiated."""

    role: ClassVar[str] = "score"
    reads: ClassVar[Literal["pair", "state", "window"]] = "pair"
    """What it looks at beside the pair: the state below, or the window above."""

    def score(self, pairs: Contenders) -> Float[Tensor, "B E H"]:
        """What each pair is worth. The positions of none do not matter."""
        raise NotImplementedError

    def error(self, exact: Float[Tensor, "B H t e"], product: Float[Tensor, "B H t e"]) -> Float[Tensor, "B H t e"]:
        """Where it reads the window: how far the product of features is from the weight exp(q·k / √D) that it stands for."""
        raise NotImplementedError


class WindowScore(Score):
    """The errors of a pair while it stood in the window above, summed over the queries that saw it."""

    reads: ClassVar[Literal["pair", "state", "window"]] = "window"

    def score(self, pairs: Contenders) -> Float[Tensor, "B E H"]:
        assert pairs.errors is not None, "the graph wires the window above"
        return pairs.errors
