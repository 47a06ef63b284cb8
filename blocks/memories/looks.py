"""Looks at a matrix without decay: the same keys ask again and again, and what falls in only adds to their numerators."""

from __future__ import annotations

from collections.abc import Callable

from blocks.flow import Features, least_mass, may_look
from blocks.legend import Float, Int, Tensor, torch


class Looks:
    """How far what each query head's matrix, as it stands, answers to the keys of some pairs is from their values, while some of
    them fall in.

    asking: keys as they ask; divisor: what numerators ``B H E V`` are divided by; None: the mass, which the last column sums.
    """

    def __init__(self, matrix: Float[Tensor, "B H F V"], asking: Callable[[Tensor], Tensor], divisor: float | None) -> None:
        columns = matrix.shape[-1] - (divisor is None)
        # The sums of keys have no column where a divisor is given.
        self.matrix, self.sums, self.asking, self.divisor = matrix[..., :columns], matrix[..., columns:], asking, divisor
        self.fallen: Tensor | None = None
        self.unseen: list[Tensor] = []

    def look(self, pairs: Features) -> None:
        """Ask for these from now on; what has fallen of others is in the matrix."""
        if self.fallen is not None:
            self.matrix = self.matrix + self.keys.mT @ (self.value * self.fallen)
            self.sums = self.sums + self.keys.mT @ self.fallen
        value, queries, keys = pairs.value.to(self.matrix.dtype), self.asking(pairs.key), pairs.key
        if pairs.present is not None and not (may_look(pairs.present) and bool(pairs.present.all())):
            keys = pairs.there(keys, 0.0)  # a key of 0 enters nothing
        self.value, self.keys, self.queries = (of.transpose(1, 2).contiguous() for of in (value, keys, queries))
        self.numerators, self.masses = self.queries @ self.matrix, self.queries @ self.sums
        self.products, self.fallen, self.unseen = None, torch.zeros_like(self.keys[..., :1]), []

    def fall(self, index: Int[Tensor, "B M H"]) -> None:
        """Let some of them fall in."""
        assert self.fallen is not None
        index = index.transpose(1, 2)[..., None]
        self.fallen.scatter_(2, index, 1.0)
        self.unseen.append(index)

    def distances(self) -> Float[Tensor, "B E H"]:
        """From what the matrix answers to each key to the pair's value."""
        for index in self.unseen:
            # What one more pair adds: the product of its key with each that asks, times its value.
            self.products = self.queries @ self.keys.mT if self.products is None else self.products
            value = self.value.gather(2, index.expand(-1, -1, -1, self.value.shape[-1]))
            products = self.products.gather(3, index.mT.expand(-1, -1, self.products.shape[2], -1))
            if index.shape[2] == 1:  # an outer product, which a matrix product is slow at
                self.numerators.addcmul_(products, value)
                self.masses += products
            else:
                self.numerators += products @ value
                self.masses += products.sum(-1, keepdim=True)
        self.unseen = []
        if self.divisor is not None:
            return torch.linalg.vector_norm(self.numerators / self.divisor - self.value, dim=-1).transpose(1, 2)
        # Without a mass the answer is 0, and the numerators are next to it.
        masses = torch.threshold(self.masses, least_mass(self.masses.dtype), 1.0)
        beside = torch.addcmul(self.numerators, masses, self.value, value=-1)
        return (torch.linalg.vector_norm(beside, dim=-1) / masses[..., 0]).transpose(1, 2)
