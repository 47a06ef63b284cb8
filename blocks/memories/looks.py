"""Looks at a matrix without decay: the same keys ask again and again, and what falls in only adds to their numerators."""

from __future__ import annotations

from collections.abc import Callable

from blocks.flow import Features, with_ones
from blocks.legend import Bool, Float, Int, Tensor, torch


class Looks:
    """What each query head's matrix, as it stands, answers to the keys of some pairs, while some of them fall in.

    asking: keys as they ask; answers: what numerators ``B H E V`` come to; mass: whether the last column of the matrix is the mass.
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
        self.fallen: Tensor | None = None
        self.unseen: list[tuple[Tensor, Tensor]] = []

    def look(self, pairs: Features) -> None:
        """Ask for these from now on; what has fallen of others is in the matrix."""
        if self.fallen is not None:
            self.matrix = self.matrix + self.keys.mT @ (self.value * self.fallen)
        value = pairs.value.to(self.matrix.dtype)
        keys, self.value = (of.transpose(1, 2).contiguous() for of in (pairs.key, with_ones(value) if self.mass else value))
        queries = self.asking(pairs.key).transpose(1, 2).contiguous()
        self.numerators, self.queries, self.products = queries @ self.matrix, queries, None
        self.keys, self.fallen, self.unseen = keys, torch.zeros_like(keys[..., :1]), []

    def fall(self, index: Int[Tensor, "B M H"], there: Bool[Tensor, "B M H"]) -> None:
        """Let some of them fall in, where they are pairs."""
        assert self.fallen is not None
        index, there = index.transpose(1, 2)[..., None], there.transpose(1, 2)[..., None].to(self.value.dtype)
        self.fallen = self.fallen.scatter(2, index, there)
        self.unseen.append((index, there))

    def predict(self) -> Float[Tensor, "B E H D"]:
        """What the matrix answers to each key."""
        for index, there in self.unseen:
            # What one more pair adds: the product of its key with each that asks, times its value.
            self.products = self.queries @ self.keys.mT if self.products is None else self.products
            value = self.value.gather(2, index.expand(-1, -1, -1, self.value.shape[-1])) * there
            products = self.products.gather(3, index.mT.expand(-1, -1, self.products.shape[2], -1))
            if index.shape[2] == 1:  # an outer product, which a matrix product is slow at
                self.numerators = torch.addcmul(self.numerators, products, value)
            else:
                self.numerators = self.numerators + products @ value
        self.unseen = []
        return self.answers(self.numerators).transpose(1, 2)
