"""What has fallen into a state, and how much of it the state gives back."""

from __future__ import annotations

import torch
from torch import Tensor

from blocks.flow import Mapped, Pairs, repeat_heads
from composer.graph.graph import Node
from composer.inspection.findings import HeadFindings
from composer.inspection.measures import Moment, Recalls, recalled, spectrum
from composer.model.head import Head
from composer.model.watched import Piece


class Store:
    """The pairs in one memory of features, as they fell in."""

    def __init__(self, head: Head, node: Node) -> None:
        self._node = node
        self._edges = {edge.input: (edge.start, edge.output) for edge in head.graph.into(node.name)}
        self._keys: list[Tensor] = []
        self._values: list[Tensor] = []
        self._there: list[Tensor] = []
        self._columns: list[Tensor] = []
        self._queries: list[Tensor] = []
        self._logarithm = False
        self._moments: list[Moment] = []

    def take(self, piece: Piece) -> None:
        """The pairs that fall in during this piece."""
        mapped: Mapped = piece.values[self._edges["features"]]
        pairs: Pairs | None = piece.values[self._edges["pairs"]]
        self._logarithm = mapped.logarithm
        self._queries.append(mapped.query[0])
        if pairs is None or not pairs.key.shape[1]:
            return
        heads, present = self._node.shape.state_heads, pairs.present
        there = present[0][:, None].expand(-1, heads) if present.dim() == 2 else repeat_heads(present, heads)[0]
        some = there.any(1)
        arrival = torch.arange(len(some)) if pairs.arrival is None else pairs.arrival[0]
        self._columns.append((piece.columns.start + arrival)[some])
        self._there.append(there[some])
        self._keys.append(repeat_heads(mapped.key(pairs), heads)[0][some])
        self._values.append(repeat_heads(pairs.value, heads)[0][some])

    def ask(self, piece: Piece) -> None:
        """Ask the state, as it stands behind this piece, for all that is in it."""
        memory, end = self._node.part, piece.columns.stop
        assert isinstance(memory, Recalls)
        if not sum(map(len, self._keys)):
            return
        own = {slot: piece.state[f"{self._node.name}.{slot}"] for slot in self._node.operation.slots}
        back = memory.predict(torch.cat(self._keys)[None], own)[0]
        age = end - 1 - torch.cat(self._columns)
        self._moments.append(Moment(end, age, torch.cat(self._there), torch.cat(self._values).to(back.dtype), back))

    def into(self, found: HeadFindings) -> None:
        """Write down what was seen."""
        name = self._node.name
        if self._moments:
            found.recalled[name] = recalled(self._moments)
        found.spectra[f"query features of {name}"] = spectrum(torch.cat(self._queries), logarithm=self._logarithm)
        if self._moments:
            keys, there = torch.cat(self._keys), torch.cat(self._there)
            found.spectra[f"key features of {name}"] = spectrum(keys, there, logarithm=self._logarithm)
