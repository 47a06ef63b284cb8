"""The pairs in a state, and how well the state recalls their values."""

from __future__ import annotations

import torch
from torch import Tensor

from blocks.flow import Mapped, Pairs
from blocks.tensors import repeat_heads
from composer.graph.flow_of_pairs import ALL
from composer.graph.graph import Node
from composer.inspection.findings import Recalled, Spectrum
from composer.inspection.measures import Moment, Recalls, recalled, spectrum
from composer.model.head import Head, anatomy
from composer.model.implicit_attention import ImplicitAttention
from composer.model.stepwise import Piece


class Store:
    """One memory of features, with all pairs of the text. A pair is in the memory if its weight in the answer is not 0."""

    def __init__(self, head: Head, node: Node, implied: ImplicitAttention) -> None:
        self._node, self._heads, self.name = node, node.shape.state_heads, node.name
        self._rows = {query: row for row, query in enumerate(implied.queries)}
        self._weights = implied.own[node.name][0]
        self._features = next((edge.start, edge.output) for edge in anatomy(head).graph.into(node.name, "features"))
        self._keys: list[Tensor] = []
        self._values: list[Tensor] = []
        self._queries: list[Tensor] = []
        self._logarithm = False
        self._moments: list[Moment] = []

    def take(self, piece: Piece) -> None:
        """Add the pairs of a piece, with the features that the memory takes, whenever they fall into it."""
        mapped: Mapped = piece.values[self._features]
        pairs: Pairs = piece.values[ALL, ALL]
        self._logarithm = mapped.logarithm
        self._queries.append(mapped.query[0].cpu())
        self._keys.append(repeat_heads(mapped.key(pairs), self._heads)[0].cpu())
        self._values.append(repeat_heads(pairs.value, self._heads)[0].cpu())

    def ask(self, piece: Piece) -> None:
        """Read all stored values from the state after this piece, whose last token is one of the queries."""
        memory, end = self._node.part, piece.columns.stop
        assert isinstance(memory, Recalls)
        # Query heads with a common state have the same pairs in it. One of them may give a pair the weight 0 by chance.
        there = (self._weights[self._rows[end - 1], :, :end] != 0).unflatten(0, (self._heads, -1)).any(1).T
        if not there.any():
            return
        own = {slot: piece.state[f"{self._node.name}.{slot}"] for slot in self._node.operation.slots}
        keys = torch.cat(self._keys)[None].to(next(iter(own.values())).device)
        back = memory.predict(keys, own)[0].cpu()
        age = end - 1 - torch.arange(end)
        self._moments.append(Moment(end, age, there, torch.cat(self._values).to(back.dtype), back))

    def spectra(self) -> dict[str, Spectrum]:
        """The spectra of all queries and keys of the text."""
        stage = f"features of {self.name}"
        queries = spectrum(torch.cat(self._queries), "query", stage, logarithm=self._logarithm)
        keys = spectrum(torch.cat(self._keys), "key", stage, logarithm=self._logarithm)
        return {one.name: one for one in (queries, keys)}

    def recalled(self) -> Recalled | None:
        """The recall at all moments; None where no pair has ever been in the memory."""
        return recalled(self._moments) if self._moments else None
