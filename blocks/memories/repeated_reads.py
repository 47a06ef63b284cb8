"""Repeated reads of a state without decay by the same keys. A pair that is added to the state only adds to the numerators of these
reads, so they are not computed again."""

from __future__ import annotations

from collections.abc import Callable

from blocks.flow import Features
from blocks.legend import Float, Int, Tensor, torch
from blocks.tensors import least_mass


class RepeatedReads:
    """Reads of a state by the keys of some pairs, while some of these pairs are evicted into it.

    matrix: the state. as_queries: a function from keys to the queries that read the state. divisor: the divisor of the numerators
    ``B H E V``; None: the mass, which the last column of the state sums.
    """

    def __init__(self, matrix: Float[Tensor, "B H F V"], as_queries: Callable[[Tensor], Tensor], divisor: float | None) -> None:
        columns = matrix.shape[-1] - (divisor is None)
        # With a divisor, the sums of keys have no column.
        self.matrix, self.sums, self.as_queries, self.divisor = matrix[..., :columns], matrix[..., columns:], as_queries, divisor
        self.not_added: list[Tensor] = []

    def set_pairs(self, pairs: Features, evicted: Features | None) -> None:
        """Set the pairs whose keys read the state from now on. evicted: pairs of the previous set that were evicted into it."""
        if evicted is not None:
            keys, values = (
                evicted.fill_absent(evicted.key, 0.0).transpose(1, 2),
                evicted.value.to(self.matrix.dtype).transpose(1, 2),
            )
            self.matrix = self.matrix + keys.mT @ values
            if self.divisor is None:
                self.sums = self.sums + keys.sum(2)[..., None]
        value, queries = pairs.value.to(self.matrix.dtype), self.as_queries(pairs.key)
        keys = pairs.fill_absent(pairs.key, 0.0)  # a key of 0 enters nothing
        self.value, self.keys, self.queries = (states.transpose(1, 2).contiguous() for states in (value, keys, queries))
        self.numerators, self.masses = self.queries @ self.matrix, self.queries @ self.sums
        self.products, self.not_added = None, []

    def evict(self, index: Int[Tensor, "B M H"]) -> None:
        """Add the pairs at these places to the state."""
        self.not_added.append(index.transpose(1, 2)[..., None])

    def distances(self) -> Float[Tensor, "B E H"]:
        """Return the distance between the state's output for each key and the value of the pair."""
        for index in self.not_added:
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
        self.not_added = []
        if self.divisor is not None:
            return torch.linalg.vector_norm(self.numerators / self.divisor - self.value, dim=-1).transpose(1, 2)
        # Without a mass the output is 0, and the numerators are next to it.
        masses = torch.threshold(self.masses, least_mass(self.masses.dtype), 1.0)
        beside = torch.addcmul(self.numerators, masses, self.value, value=-1)
        return (torch.linalg.vector_norm(beside, dim=-1) / masses[..., 0]).transpose(1, 2)
