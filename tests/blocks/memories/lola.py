"""LoLA with plain lists, Appendix G as repaired, one query head at a time; and the blocks that should do the same, one above the
other: a window, a cache, a state of 1 + ELU, and one denominator."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from blocks.flow import Features, Pairs, Partial, Tokens
from blocks.legend import Shape
from blocks.memories.errors import Compared
from blocks.memories.sparse import Sparse
from blocks.memories.state import StateMemory
from blocks.memories.window import Window
from blocks.positions import Rope
from blocks.reads import Shared
from tests.blocks.memories.by_hand import Row, Stream
from tests.blocks.support import empty, owner
from tests.composer.graph.memories_by_hand import uniform

ROPE = Rope(theta=20.0)
"""Of the window and the cache. The state sees the convolved keys as they are."""
PLACE = (3, 8)
"""The layer, and the first of the heads in it."""
States = dict[str, dict[str, Tensor]]


def features(states: Tensor) -> Tensor:
    """1 + ELU."""
    return torch.where(states > 0, states + 1, states.clamp(max=0).exp())


class ByHand:
    """One query head of one row: its window, its global cache, and H and s of its hidden state, all in tokens of the row."""

    def __init__(self, stream: Stream, row: int, head: int, window: Window, sparse: Sparse) -> None:
        self.stream, self.row, self.head, self.window, self.sparse = stream, row, head, window, sparse
        lengths = stream.rows[row].lengths
        self.places = stream.rows[row].tokens
        self.listed = Row(lengths, window.size, window.shape == "terraced")
        self.own = owner(head, stream.shape.heads, stream.shape.key_heads)
        self.errors = [0.0] * sum(lengths)
        self.begin()

    def begin(self) -> None:
        """Nothing of another document is left."""
        self.cache: list[int] = []
        self.H = torch.zeros(self.stream.shape.head_dim, self.stream.shape.head_dim, dtype=torch.float64)
        self.s = torch.zeros(self.stream.shape.head_dim, dtype=torch.float64)

    def outputs(self, sigma: Tensor | None = None) -> Tensor:
        """Equation 13 at every token, the exact memories weighed by ``sigma``."""
        answers = []
        for token, fallen, held in self.listed.take(len(self.places)):
            if self.places[token][1] == 0:
                self.begin()
            for pair in held:
                self.errors[pair] += self.error(token, pair)
            self.update(fallen)
            query = features(self.query(token))
            numerator, denominator = query @ self.H, query @ self.s
            for pair in [*self.cache, *held]:
                weight = self.weight(token, pair) * (1.0 if sigma is None else sigma[self.head])
                numerator, denominator = numerator + weight * self.value(pair), denominator + weight
            answers.append(numerator / denominator)
        return torch.stack(answers)

    def update(self, fallen: list[int]) -> None:
        """Several may fall. All are scored before any enters the state, and none does while the cache has room."""
        eligible, dropped = [*self.cache, *fallen], []
        scores = {pair: self.score(pair) for pair in eligible} if fallen else {}
        while len(eligible) > self.sparse.size:
            youngest_first = eligible[::-1]
            dropped.append(min(youngest_first, key=lambda pair: scores[pair]))
            eligible.remove(dropped[-1])
        for pair in dropped:
            key = features(self.key(pair))
            self.H, self.s = self.H + torch.outer(key, self.value(pair)), self.s + key
        self.cache = eligible

    def score(self, pair: int) -> float:
        if self.sparse.keep == "recent":
            return pair
        if self.sparse.keep == "random":
            return uniform(self.sparse.seed, PLACE[0], PLACE[1] + self.head, self.places[pair][1])
        if self.sparse.error is not None:
            return self.errors[pair]
        key, value = features(self.key(pair)), self.value(pair)
        predicted = key @ self.H / (key @ self.s) if self.s.any() else torch.zeros_like(value)
        error = math.dist(predicted.tolist(), value.tolist())
        return error / math.hypot(*value.tolist()) if self.sparse.keep == "relative_recall" else error

    def error(self, token: int, pair: int) -> float:
        """What one query adds to the sums of Appendix D."""
        exact = self.weight(token, pair).item()
        linear = (features(self.query(token)) @ features(self.key(pair))).item()
        both = {"squared_error": (exact - linear) ** 2, "absolute_error": abs(exact - linear), "overestimate": linear / exact}
        return both.get(self.sparse.keep, 0.0)

    def weight(self, token: int, pair: int) -> Tensor:
        """exp(q·k / √d) of what the exact memories turn."""
        return self.stream.attention(self.row, token, [pair], self.head, turn(len(self.places)))[1].exp()

    def query(self, token: int) -> Tensor:
        return self.stream.query[self.row, token, self.head]

    def key(self, pair: int) -> Tensor:
        convolved = self.stream.convolved
        return convolved[self.row, pair, owner(self.head, self.stream.shape.heads, convolved.shape[2])]

    def value(self, pair: int) -> Tensor:
        return self.stream.value[self.row, pair, self.own]


def turn(length: int) -> Tensor:
    """What rope multiplies by at each position."""
    angles = torch.arange(length)[:, None].float() * ROPE.frequencies(4)
    return torch.complex(angles.cos().double(), angles.sin().double())


class Beneath:
    """The state, as a cache above it sees it."""

    def __init__(self, memory: StateMemory, query: Tensor, tokens: Tokens, held: dict[str, Tensor], form: str) -> None:
        self.memory, self.query, self.tokens, self.held, self.form = memory, features(query), tokens, held, form
        self.partials: list[Partial] = []

    def map(self, pairs: Pairs) -> Tensor:
        return features(pairs.convolved)

    def predict(self, keys: Tensor) -> Tensor:
        return self.memory.predict({}, keys, self.held)

    def take(self, pairs: Pairs | None, keys: Tensor | None, columns: slice) -> None:
        query = self.query[:, columns]
        if pairs is None or keys is None:
            nothing = torch.zeros(query.shape[:2], dtype=torch.bool)
            entering = Features(torch.zeros_like(query), torch.zeros_like(query), nothing)
        else:
            entering = Features(keys, pairs.value, pairs.present, torch.zeros(keys.shape[:2], dtype=torch.int64))
        tokens = self.tokens.cut(columns)
        partial, self.held = self.memory.recall({}, query, entering, None, tokens, self.held, form=self.form)
        self.partials.append(partial)

    def answer(self) -> Partial:
        masses = [partial.lse for partial in self.partials if partial.lse is not None]
        return Partial(torch.cat([partial.output for partial in self.partials], dim=1), torch.cat(masses, dim=1))


@dataclass(frozen=True)
class Cascade:
    """Window above cache above state; ``factor`` is the logit of the weight that window and cache have, if any."""

    window: Window
    sparse: Sparse
    shape: Shape
    factor: Tensor | None = None
    form: str = "torch"

    def parts(self) -> dict[str, tuple[Window | Sparse | StateMemory, Shape]]:
        """With the sizes that each stands on."""
        heads = self.shape.heads
        numbers = (("sparse_error", heads),) if self.sparse.error else ()
        own = replace(self.shape, numbers=numbers, features=self.shape.head_dim, state_heads=heads)
        return {"window": (self.window, own), "sparse": (self.sparse, own), "state": (StateMemory(), own)}

    def start(self, batch: int, dtype: torch.dtype = torch.float64) -> States:
        return {name: empty(part, shape, batch, dtype) for name, (part, shape) in self.parts().items()}

    def call(self, query: Tensor, pairs: Pairs, tokens: Tokens, states: States) -> tuple[Tensor, States, Partial]:
        """The head's output, the states it hands on, and what the cache answered."""
        compared = {}
        if self.sparse.error is not None:
            asked = Compared(self.sparse.error, lambda: features(query), lambda these: features(these.convolved), False)  # pyright: ignore
            compared = {"sparse_error": asked}
        near, window, fallen = self.window.attend(
            {}, query, pairs, tokens, states["window"], form=self.form, compared=compared
        )
        beneath = Beneath(StateMemory(), query, tokens, states["state"], self.form)
        kept, sparse = self.sparse.attend({}, query, fallen, tokens, states["sparse"], below=beneath, place=PLACE)
        weighed = [replace(partial, logit=self.factor) for partial in (near, kept)]
        output = Shared().combine({}, [*weighed, beneath.answer()])
        return output, {"window": window, "sparse": sparse, "state": beneath.held}, kept
