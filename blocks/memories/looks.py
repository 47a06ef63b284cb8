"""Repeated reads of a matrix without decay: the same keys read it again and again, and evicted pairs only add to their
numerators."""

from __future__ import annotations

from collections.abc import Callable

from blocks.flow import Features
from blocks.legend import Float, Int, Tensor, torch
from blocks.tensors import least_mass


class Looks:
    """The distance between each query head's read of the matrix by the keys of some pairs, and the values of these pairs, while
    some of them are evicted into the matrix. asking: the keys with which it is read. divisor: the divisor of the numerators ``B H E
    V``; None: the mass, which the last column sums."""

    def __init__(self, matrix: Float[Tensor, "B H F V"], asking: Callable[[Tensor], Tensor], divisor: float | None) -> None:
        columns = matrix.shape[-1] - (divisor is None)
        # With a divisor, the sums of keys have no column.
        self.matrix, self.sums, self.asking, self.divisor = matrix[..., :columns], matrix[..., columns:], asking, divisor
        self.unseen: list[Tensor] = []

    def look(self, pairs: Features, evicted: Features | None) -> None:
        """Set the pairs to compare from now on. evicted: pairs that other looks have evicted since the last call."""
        if evicted is not None:
            keys, values = (
                evicted.fill_absent(evicted.key, 0.0).transpose(1, 2),
                evicted.value.to(self.matrix.dtype).transpose(1, 2),
            )
            self.matrix = self.matrix + keys.mT @ values
            if self.divisor is None:
                self.sums = self.sums + keys.sum(2)[..., None]
        value, queries = pairs.value.to(self.matrix.dtype), self.asking(pairs.key)
        keys = pairs.fill_absent(pairs.key, 0.0)  # a key of 0 enters nothing
        self.value, self.keys, self.queries = (of.transpose(1, 2).contiguous() for of in (value, keys, queries))
        self.numerators, self.masses = self.queries @ self.matrix, self.queries @ self.sums
        self.products, self.unseen = None, []

    def evict(self, index: Int[Tensor, "B M H"]) -> None:
        """Add evicted pairs."""
        self.unseen.append(index.transpose(1, 2)[..., None])

    def distances(self) -> Float[Tensor, "B E H"]:
        """From what the matrix answers to each key to the pair's value."""
        for index in self.unseen:
            # The contribution of one more pair: the product of its key with each reading key, times its value.
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
