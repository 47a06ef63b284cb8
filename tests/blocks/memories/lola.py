"""LoLA in plain lists (Appendix G with its corrections) for one query head at a time, and the product's cascade for comparison:
a window, a sparse cache, a state of 1 + ELU, and one denominator.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from blocks import operation
from blocks.flow import Features, Pairs, Partial, Tokens
from blocks.legend import Shape
from blocks.memories.sparse import Sparse
from blocks.memories.state import StateMemory
from blocks.memories.state_below import StateBelow
from blocks.memories.window import Window
from blocks.operation import REFERENCE, Setting
from blocks.pattern import RunningPart
from blocks.positions import NoPosition, Rope
from blocks.reads import Shared
from blocks.scores.random import Random
from blocks.softmax import dense, native
from blocks.tensors import accumulating
from tests.blocks.memories.by_hand import Call, Row, Stream
from tests.blocks.support import combined, computed, empty, owner, recalled
from tests.composer.graph.memories_by_hand import ROUNDING, best_of, uniform

ROPE = Rope(theta=20.0)
"""Of the window and the cache. The state sees the convolved keys as they are."""
PLACE = (3, 8)
"""The layer, and the first of the heads in it."""
ROWS = [[13], [4, 1, 8], [11]]
SPLITS = {
    "whole": [Call([13, 13, 11], 13)],
    "one by one": [Call([1, 1, 1], 1)] * 11 + [Call([1, 1, 0], 1)] * 2,
    "ragged": [Call([3, 0, 4], 4), Call([0, 5, 0], 5), Call([1, 1, 0], 2), Call([9, 7, 7], 11)],
}
CONVOLVED = Shape(hidden_size=6, heads=4, key_heads=2, head_dim=4, convolved_heads=4)
States = dict[str, dict[str, Tensor]]


def features(states: Tensor) -> Tensor:
    """Return 1 + ELU."""
    states = states.to(accumulating(states.dtype))
    return torch.where(states > 0, states + 1, states.clamp(max=0).exp())


def map_keys(*, entering: Pairs) -> Tensor:
    """Return the features of a map of keys without parameters."""
    return features(entering.mappable(NoPosition()))


def run_map(function: Callable[..., Any], *inputs: Any, **options: Any) -> Any:
    """Call a function of a part without parameters, as its module does."""
    return function(*inputs, **options)


class ByHand:
    """One query head of one row: its window, its global cache, and H and s of its hidden state, in tokens of the row."""

    def __init__(self, stream: Stream, row: int, head: int, window: Window, sparse: Sparse) -> None:
        self.head, self.sparse = head, sparse
        lengths = stream.rows[row].lengths
        self.places = stream.rows[row].tokens
        self.listed = Row(lengths, window.size, window.shape == "terraced")
        shape, convolved = stream.shape, stream.convolved
        own, own_features = owner(head, shape.heads, shape.key_heads), owner(head, shape.heads, convolved.shape[2])
        query, key = stream.query[row, :, head], stream.key[row, :, own]
        self.value = stream.value[row, :, own]
        self.query_features, self.key_features = features(query), features(convolved[row, :, own_features])
        products = self.rotated(query)[:, None] * self.rotated(key).conj()
        self.weights = (products.real.sum(-1) / math.sqrt(shape.head_dim)).exp()
        self.errors = [0.0] * len(self.places)
        self.begin()

    def rotated(self, states: Tensor) -> Tensor:
        """Rotate each token by its place in its document, as a product of complex numbers."""
        half = states.shape[-1] // 2
        angles = torch.tensor([[float(place)] for _, place in self.places]) * ROPE.frequencies(2 * half)
        states = states[: len(self.places)]
        return torch.complex(states[:, :half], states[:, half:]) * torch.complex(angles.cos().double(), angles.sin().double())

    def begin(self) -> None:
        """Clear everything from the previous document."""
        self.cache: list[int] = []
        self.H = torch.zeros(self.key_features.shape[-1], self.value.shape[-1], dtype=torch.float64)
        self.s = torch.zeros(self.key_features.shape[-1], dtype=torch.float64)

    def outputs(self, sigma: Tensor | None = None) -> Tensor:
        """Return equation 13 at every token, with the exact memories weighted by ``sigma``."""
        answers = []
        for token, evicted, held in self.listed.take(len(self.places)):
            if self.places[token][1] == 0:
                self.begin()
            for pair in held:
                self.errors[pair] += self.error(token, pair)
            self.update(evicted)
            query = self.query_features[token]
            numerator, denominator = query @ self.H, query @ self.s
            for pair in [*self.cache, *held]:
                weight = self.weights[token, pair] * (1.0 if sigma is None else sigma[self.head])
                numerator, denominator = numerator + weight * self.value[pair], denominator + weight
            answers.append(numerator / denominator)
        return torch.stack(answers)

    def update(self, evicted: list[int]) -> None:
        """Update the cache with the evicted pairs. All of them are scored before any enters the state. While the cache has room,
        none enters it.
        """
        eligible = [*self.cache, *evicted]
        stay = eligible
        if len(eligible) > self.sparse.size:
            stay = best_of(eligible, {pair: self.score(pair) for pair in eligible}, self.sparse.size)
        for pair in eligible:
            if pair not in stay:
                key = self.key_features[pair]
                self.H, self.s = self.H + torch.outer(key, self.value[pair]), self.s + key
        self.cache = [pair for pair in eligible if pair in stay]

    def score(self, pair: int) -> tuple[float, float]:
        """Return the score of a pair and its resolution."""
        if self.sparse.keep.kind == "recent":
            return pair, 0.0
        if isinstance(self.sparse.keep, Random):
            return uniform(self.sparse.keep.seed, PLACE[0], PLACE[1] + self.head, self.places[pair][1]), 0.0
        if self.sparse.keep.reads == "window":
            return self.errors[pair], ROUNDING * self.errors[pair]
        key, value = self.key_features[pair], self.value[pair]
        predicted = key @ self.H / (key @ self.s) if self.s.any() else torch.zeros_like(value)
        share = math.hypot(*value.tolist()) if self.sparse.keep.kind == "relative_recall" else 1.0
        distance = math.dist(predicted.tolist(), value.tolist())
        return distance / share, ROUNDING * (distance + math.hypot(*value.tolist())) / share

    def error(self, token: int, pair: int) -> float:
        """Return what one query adds to the sums of Appendix D."""
        exact, linear = self.weights[token, pair].item(), (self.query_features[token] @ self.key_features[pair]).item()
        both = {"squared_error": (exact - linear) ** 2, "absolute_error": abs(exact - linear), "overestimate": linear / exact}
        return both.get(self.sparse.keep.kind, 0.0)


class Beneath(StateBelow):
    """The state as the cache above it reads it: recomputed at each look from all evicted pairs, row by row."""

    def __init__(
        self, memory: StateMemory, query: Tensor, tokens: Tokens, held: dict[str, Tensor], form: str, max_per_token: int = 1
    ) -> None:
        self.memory, self.query, self.tokens, self.held, self.form = memory, features(query), tokens, held, form
        self.dtype = query.dtype
        self.max_per_token, self.seen = max_per_token, dict(held)
        self.evicted: list[tuple[Tensor, ...]] = []

    def map(self, pairs: Pairs) -> Tensor:
        return features(pairs.mappable(NoPosition()))

    def reach(self, column: Tensor) -> None:
        """Process the tokens before the column. At the column itself, only clear the state if a document starts there."""
        rows = []
        for row, end in enumerate(column.tolist()):
            tokens = Tokens(
                self.tokens.position[row, None, : end + 1],
                None if self.tokens.segment is None else self.tokens.segment[row, None, : end + 1],
            )
            query, held = self.query[row, None, : end + 1], {name: tensor[row, None] for name, tensor in self.held.items()}
            rows.append(recalled(self.memory, self.form, query, self._all(query, row), None, tokens, held)[1])
        self.seen = {name: torch.cat([row[name] for row in rows]) for name in self.held}

    def distances(self) -> Tensor:
        return torch.linalg.vector_norm(self.memory.predict(self.looked_for[0], self.seen) - self.looked_for[1], dim=-1)

    def set_pairs(self, pairs: Pairs, keys: Tensor) -> None:
        self.looked_for = keys, pairs.value

    def evict(self, index: Tensor, present: Tensor, column: Tensor) -> None:
        key, value = (of.gather(1, index[..., None].expand(-1, -1, -1, of.shape[-1])) for of in self.looked_for)
        self.evicted.append((key, value, present, column[:, None].expand(key.shape[:2])))

    def answer(self) -> Partial:
        evicted = replace(self._all(self.query), max_per_token=self.max_per_token)
        partial, self.held = recalled(self.memory, self.form, self.query, evicted, None, self.tokens, self.held)
        return partial

    def _all(self, query: Tensor, row: int | None = None) -> Features:
        """Return all evicted pairs of every row, or of one row."""
        rows = slice(None) if row is None else slice(row, row + 1)
        batch, _, heads, _ = query.shape
        nothing = (query[:, :0], query[:, :0].to(self.dtype), torch.zeros(batch, 0, heads).bool(), torch.zeros(batch, 0).long())
        key, value, present, arrival = (
            torch.cat(of, dim=1) for of in zip(nothing, *([of[rows] for of in each] for each in self.evicted), strict=True)
        )
        return Features(key, value, present, arrival)


@dataclass(frozen=True)
class Cascade:
    """A window above a cache above a state. ``factor``: the logit of the weight of window and cache, if there is one."""

    window: Window
    sparse: Sparse
    shape: Shape
    factor: Tensor | None = None
    form: str = "torch"

    def parts(self) -> dict[str, tuple[Window | Sparse | StateMemory, Shape]]:
        """Return the parts with their sizes."""
        heads = self.shape.heads
        numbers = self.sparse.sums(self.shape)
        own = replace(self.shape, numbers=numbers, features=self.shape.head_dim, state_heads=heads)
        return {"window": (self.window, own), "sparse": (self.sparse, own), "state": (StateMemory(), own)}

    def start(self, batch: int, dtype: torch.dtype = torch.float64) -> States:
        return {name: empty(part, shape, batch, dtype) for name, (part, shape) in self.parts().items()}

    def near(
        self, query: Tensor, pairs: Pairs, tokens: Tokens, state: dict[str, Tensor]
    ) -> tuple[tuple[Partial, Pairs], dict[str, Tensor]]:
        """Return the window's partial and its evicted pairs, with the sums that the cache needs."""
        part, shape = self.parts()["window"]
        mapped = {number.name: features(query) for number in shape.numbers}
        maps = dict.fromkeys(mapped, RunningPart(part, operation.Call(tokens, {}, shape), run_map, (map_keys,)))
        setting = Setting(gradients=any(of.requires_grad for of in (query, pairs.key, pairs.value)))
        inputs = {"query": query, "pairs": pairs, "features": mapped, "maps": maps}
        return computed(part, self.form, shape, {}, tokens, state, setting=setting, **inputs)

    def call(self, query: Tensor, pairs: Pairs, tokens: Tokens, states: States) -> tuple[Tensor, States, Partial]:
        """Return the head's output, its new states, and the partial of the cache."""
        (near, evicted), window = self.near(query, pairs, tokens, states["window"])
        beneath = Beneath(StateMemory(), query, tokens, states["state"], self.form, evicted.max_per_token)
        call = operation.Call(tokens, states["sparse"], self.parts()["sparse"][1], PLACE)
        gradients = any(of.requires_grad for of in (query, evicted.key, evicted.value))
        attention = dense if gradients or self.form == REFERENCE else native
        rotated = self.sparse.rotation.rotate_tokens(query, tokens)
        kept, sparse = self.sparse.attend({}, rotated, evicted, call, below=beneath, attention=attention)
        weighed = [replace(partial, logit=self.factor) for partial in (near, kept)]
        output = combined(Shared(), [*weighed, beneath.answer()])
        return output, {"window": window, "sparse": sparse, "state": beneath.held}, kept


def window(size: int, shape: str) -> Window:
    return Window.model_validate({"size": size, "shape": shape, "position": ROPE})


def sparse(size: int, keep: str | dict[str, Any] = "self_recall", **options: Any) -> Sparse:
    return Sparse.model_validate({"size": size, "keep": keep, "position": ROPE, **options})


def streamed(of: Cascade, rows: list[list[int]] = ROWS) -> Stream:
    """Draw random rows of documents for this cascade."""
    return Stream(of.shape, rows, of.window.size, of.shape.convolved_heads, terraced=of.window.shape == "terraced")


def run(of: Cascade, stream: Stream, split: str) -> tuple[list[Tensor], States]:
    """Return the outputs of each row's real tokens, and the last states."""
    states, outputs = of.start(len(stream.rows)), [[] for _ in stream.rows]
    for row in stream.rows:
        row.at = 0
    for call in SPLITS[split]:
        output, states, _ = of.call(*stream.call(call), states)
        for index, (row, real) in enumerate(zip(stream.rows, call.real, strict=True)):
            outputs[index].append(output[index, :real])
            row.at += real
    return [torch.cat(pieces) for pieces in outputs], states
