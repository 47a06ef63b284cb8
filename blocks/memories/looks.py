"""Looks at a matrix without decay: the same keys ask again and again, and what falls in only adds to their numerators."""

from __future__ import annotations

from collections.abc import Callable

from blocks.flow import Features, with_ones
from blocks.legend import Float, Tensor, torch


class Looks:
    """What each query head's matrix, as it stands, answers to keys.

    asking: keys as they ask; answers: what numerators ``B H E V`` come to; mass: whether the last column of the matrix is the mass.
    Where other keys begin to ask, all that has fallen enters the matrix at once.
    """

    def __init__(
        self,
        matrix: Float[Tensor, "B H F V"],
        asking: Callable[[Tensor], Tensor],
        answers: Callable[[Tensor], Tensor],
        *,
        mass: bool,
    ) -> None:
        self.matrix, self.asking, self.answers, self.mass = matrix, asking, answers, mass
        self.keys: Tensor | None = None
        self.fallen: list[tuple[Tensor, Tensor]] = []
        self.counted = 0

    def take(self, pairs: Features) -> None:
        """Let the pairs, of each query head, fall in."""
        value = pairs.value.to(self.matrix.dtype)
        value = pairs.there(with_ones(value) if self.mass else value, 0.0)
        self.fallen.append((pairs.key.transpose(1, 2), value.transpose(1, 2)))

    def predict(self, keys: Float[Tensor, "B E H F"]) -> Float[Tensor, "B E H D"]:
        """What the matrix answers to each key."""
        if keys is self.keys:
            for key, value in self.fallen[self.counted :]:
                self.numerators = self.numerators + (self.queries @ key.mT) @ value
        else:
            if self.fallen:
                key, value = (torch.cat(of, dim=2) for of in zip(*self.fallen, strict=True))
                self.matrix, self.fallen = self.matrix + key.mT @ value, []
            self.keys, self.queries = keys, self.asking(keys).transpose(1, 2).contiguous()
            self.numerators = self.queries @ self.matrix
        self.counted = len(self.fallen)
        return self.answers(self.numerators).transpose(1, 2)
