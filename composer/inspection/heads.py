"""Looks into one group of heads while its model runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from blocks.feature_maps.base import FeatureMap
from blocks.flow import Pairs
from blocks.operation import Kind
from blocks.tensors import repeat_heads
from composer.graph.composition import ALL
from composer.graph.graph import Node
from composer.graph.program import HeadInputs
from composer.inspection.findings import HeadFindings, PlainArray, Recalled, ShownNumbers, Spectrum, Vectors, Weighed
from composer.inspection.measures import Moment, Recalls, entropy, half_lives, measure_recall, norm, spectrum, stretches, sum_bins
from composer.model.head import Head, anatomy
from composer.model.implicit_attention import ImplicitAttention, implicit_attention
from composer.model.stepwise import Piece, pieces


class Store:
    """One memory of features, with all pairs of the text. A pair is in the memory if its weight in the answer is not 0."""

    def __init__(self, head: Head, node: Node, implied: ImplicitAttention) -> None:
        self._node, self._heads, self.name = node, node.shape.state_heads, node.name
        self._rows = {query: row for row, query in enumerate(implied.queries)}
        self._weights = implied.memory_weights[node.name][0]
        insides = anatomy(head)
        (self._features,) = insides.graph.into(node.name, "features")
        self._map = insides.graph.nodes[self._features.start]
        self._module = insides.parts[self._map.module]
        self._keys: list[Tensor] = []
        self._values: list[Tensor] = []
        self._queries: list[Tensor] = []
        self._logarithm = self._map.options["scale"] == "logarithm"
        self._moments: list[Moment] = []

    def take(self, piece: Piece) -> None:
        """Add the pairs of a piece, with the features that the memory reads, when they enter it."""
        pairs: Pairs = piece.values[ALL, ALL]
        assert isinstance(self._map.part, FeatureMap)
        assert self._map.rotation is not None
        keys = self._module(self._map.part.map_key, pairs.mappable(self._map.rotation), scale=self._map.options["scale"])
        self._queries.append(piece.values[self._features.start, self._features.output][0].cpu())
        self._keys.append(repeat_heads(keys, self._heads)[0].cpu())
        self._values.append(repeat_heads(pairs.value, self._heads)[0].cpu())

    def ask(self, piece: Piece) -> None:
        """Read all stored values from the state after this piece, whose last token is one of the queries."""
        memory, end = self._node.part, piece.columns.stop
        assert isinstance(memory, Recalls)
        # Query heads with a common state have the same pairs in it. The weight of a pair may be 0 by chance in one of them.
        is_stored = (self._weights[self._rows[end - 1], :, :end] != 0).unflatten(0, (self._heads, -1)).any(1).T
        if not is_stored.any():
            return
        memory_state = {slot: piece.state[f"{self._node.name}.{slot}"] for slot in self._node.operation.slots}
        keys = torch.cat(self._keys)[None].to(next(iter(memory_state.values())).device)
        back = memory.predict(keys, memory_state)[0].cpu()
        age = end - 1 - torch.arange(end)
        self._moments.append(Moment(end, age, is_stored, torch.cat(self._values).to(back.dtype), back))

    def spectra(self) -> dict[str, Spectrum]:
        """Return the spectra of all queries and keys of the text."""
        stage = f"features of {self.name}"
        queries = spectrum(torch.cat(self._queries), "query", stage, logarithm=self._logarithm)
        keys = spectrum(torch.cat(self._keys), "key", stage, logarithm=self._logarithm)
        return {spectrum.name: spectrum for spectrum in (queries, keys)}

    def compute_recall(self) -> Recalled | None:
        """Return the recall at all moments; None where no pair has ever been in the memory."""
        return measure_recall(self._moments) if self._moments else None


MOMENTS = 12
"""The most times that a state is read in a text."""


def head_findings(
    layer: int,
    name: str,
    head: Head,
    inputs: HeadInputs,
    queries: Sequence[int],
    found_at: Mapping[int, Sequence[int]],
    *,
    size: int,
    backend: str,
) -> HeadFindings:
    """Return the findings on a group of heads on one text. queries: the columns to compute weights of. found_at: for each query
    that predicts an answer, the columns of that answer. size: columns of a bin."""
    implied = implicit_attention(head, inputs, queries, backend).cpu()
    kinds = {node.name: memory.kind for node, memory in anatomy(head).graph.memories}
    weights = {memory: parts[0].transpose(0, 1) for memory, parts in implied.weights().items()}
    weighed = Weighed(
        layer=layer,
        name=name,
        numbers=tuple(anatomy(head).numbers),
        heads=inputs.query.shape[2],
        memories=tuple(weights),
        kinds=tuple(kinds[memory] for memory in weights),
        weights={memory: sum_bins(parts.float(), size).numpy() for memory, parts in weights.items()},
        shares={memory: parts[0].mT.float().numpy() for memory, parts in implied.shares().items()},
        stands={memory: tuple(tuple(stretches(row != 0) for row in rows) for rows in parts) for memory, parts in weights.items()},
        error=implied.error(),
        found=on_answers(implied, found_at),
    )
    with torch.no_grad():
        return _trace(head, inputs.detach(), implied, weighed, size, backend)


def on_answers(implied: ImplicitAttention, found_at: Mapping[int, Sequence[int]]) -> PlainArray:
    """Return the weight on the columns of each answer in the text, heads × answers."""
    total = implied.total()[0].double()
    rows = {query: row for row, query in enumerate(implied.queries)}
    columns = [total[rows[query]][:, list(places)].sum(-1) for query, places in found_at.items()]
    return torch.stack(columns, dim=1).numpy() if columns else np.zeros((total.shape[1], 0))


def _trace(head: Head, inputs: HeadInputs, implied: ImplicitAttention, weighed: Weighed, size: int, backend: str) -> HeadFindings:
    """Return the weights, with findings on the values that flow and on the states, from a run piece by piece."""
    every = -(-len(implied.queries) // MOMENTS)
    bounds = tuple(query + 1 for query in reversed(implied.queries[::-1][::every]))
    stores = [Store(head, node, implied) for node, memory in anatomy(head).graph.memories if isinstance(memory, Recalls)]
    flow = Flow()
    columns: list[int] = []
    norms: dict[str, list[PlainArray]] = {}
    last: Piece | None = None
    for last in pieces(head, inputs, backend, bounds=bounds):
        flow.take(head, last)
        for store in stores:
            store.take(last)
        if last.columns.stop in bounds:
            columns.append(last.columns.stop)
            for memory, sizes in _norms(head, last).items():
                norms.setdefault(memory, []).append(sizes)
            for store in stores:
                store.ask(last)
    assert last is not None, "a text has tokens"
    measured = [spectrum(torch.cat(parts), vectors, stage) for (vectors, stage), parts in flow.vectors.items()]
    spectra = {spectrum.name: spectrum for spectrum in measured}
    for store in stores:
        spectra |= store.spectra()
    shown = {}
    for (node, name), record in last.shown.items():
        numbers = torch.cat(flow.shown[node, name]) if (node, name) in flow.shown else record.numbers.cpu()
        shown[f"{node}: {name}"] = _numbers(numbers, record.axes, record.description, size)
    return HeadFindings(
        **dict(weighed),
        half_lives={node: half_lives(total / inputs.length) for node, total in flow.decays.items()},
        recalled={store.name: recalls for store in stores if (recalls := store.compute_recall()) is not None},
        spectra=spectra,
        norm_columns=tuple(columns),
        norms={memory: np.stack(values) for memory, values in norms.items()},
        shown=shown,
    )


VECTORS: Mapping[Vectors, Kind] = {"query": Kind.QUERY, "key": Kind.KEY}


class Flow:
    """Collects from all pieces, by node: sums of log decays, queries and keys, and the numbers that parts show of each token."""

    def __init__(self) -> None:
        self.decays: dict[str, Tensor] = {}
        self.vectors: dict[tuple[Vectors, str], list[Tensor]] = {}
        """The spectra by kind, and by the stage that computed them."""
        self.shown: dict[tuple[str, str], list[Tensor]] = {}

    def take(self, head: Head, piece: Piece) -> None:
        """Add the values of a piece."""
        for node, log_decay in piece.outputs_of(Kind.DECAY, anatomy(head).graph).items():
            if log_decay is not None:
                sums = log_decay[0].double().sum(0).cpu()
                self.decays[node] = self.decays[node] + sums if node in self.decays else sums
        for vectors, kind in VECTORS.items():
            for node, states in piece.outputs_of(kind, anatomy(head).graph).items():
                stage = "" if node == vectors else f"after {node}"
                self.vectors.setdefault((vectors, stage), []).append(states[0].cpu())
        for key, record in piece.shown.items():
            if record.axes[0] == "token":
                self.shown.setdefault(key, []).append(record.numbers[0].cpu())


def _numbers(numbers: Tensor, axes: tuple[str, ...], says: str, size: int) -> ShownNumbers:
    if axes[0] != "token":
        return ShownNumbers(axes=axes, says=says, numbers=numbers.float().numpy())
    spread = sum_bins(entropy(numbers.double()).movedim(0, -1), size, mean=True).movedim(-1, 0)
    means = sum_bins(numbers.float().movedim(0, -1), size, mean=True).movedim(-1, 0)
    return ShownNumbers(axes=axes, says=says, numbers=means.numpy(), entropy=spread.float().numpy())


def _norms(head: Head, piece: Piece) -> dict[str, PlainArray]:
    """Return the norms of the matrices that memories sum up, by memory, a number a head."""
    norms = {}
    for node, memory in anatomy(head).graph.memories:
        matrix = memory.matrix({slot: piece.state[f"{node.name}.{slot}"] for slot in node.operation.slots})
        if matrix is not None:
            norms[node.name] = norm(matrix[0].flatten(1)).cpu().numpy()
    return norms
