"""The definition of each memory for one query head of one document, in plain lists of pairs. A pair is its token's index."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from blocks.memories.sparse import Sparse
from blocks.memories.window import Window
from blocks.scores.random import Random

WORD = 1 << 64
ROUNDING = 16 * 2.0**-52
"""The relative rounding error of scores in float64."""


@dataclass(frozen=True)
class Head:
    """The inputs of one query head for each token: query and key, rotated or as features, and value."""

    query: list[Tensor]
    key: list[Tensor]
    value: list[Tensor]


@dataclass(frozen=True)
class Answer:
    """A memory's output, its mass (0: empty; None: an undivided numerator), and the largest logit of an exact memory."""

    output: Tensor
    mass: Tensor | None
    largest: Tensor | None = None
    exact: bool = False


def exact(head: Head, t: int, pairs: list[int]) -> Answer:
    """Return the softmax over these pairs."""
    if not pairs:
        return Answer(torch.zeros_like(head.value[0]), torch.zeros((), dtype=torch.float64), exact=True)
    logits = torch.stack([head.key[pair] @ head.query[t] for pair in pairs]) / math.sqrt(len(head.query[t]))
    weights = logits.exp()
    output = torch.stack([weight * head.value[pair] for weight, pair in zip(weights, pairs, strict=True)]).sum(0)
    return Answer(output / weights.sum(), weights.sum(), logits.max(), exact=True)


def held_by_a_window(window: Window, entering: list[list[int]]) -> tuple[list[list[int]], list[list[int]]]:
    """Return the pairs that a window holds at each token, and the pairs that it evicts at each token."""
    held, evictions = [], []
    for t in range(len(entering)):
        if window.shape == "sliding":
            first, gone = t + 1 - window.size, slice(max(0, t - window.size), max(0, t - window.size + 1))
        else:
            chunk = window.size * (t // window.size)
            first, gone = chunk - window.size, slice(max(0, chunk - 2 * window.size), max(0, chunk - window.size))
            gone = gone if t == chunk else slice(0)
        held.append(together(entering[max(0, first) : t + 1]))
        evictions.append(together(entering[gone]))
    return held, evictions


def together(entering: list[list[int]]) -> list[int]:
    """Return the pairs of several tokens."""
    return [pair for pairs in entering for pair in pairs]


class State:
    """A matrix that pairs enter, and whose rows are multiplied by ``survives`` at each token."""

    def __init__(self, head: Head, survives: list[Tensor]) -> None:
        self.head, self.survives = head, survives
        self.matrix = torch.zeros(len(head.key[0]), len(head.value[0]), dtype=torch.float64)

    def take(self, t: int, pairs: list[int]) -> None:
        """Decay the state, then add the pairs."""
        self.matrix = self.survives[t][:, None] * self.matrix
        for pair in pairs:
            self.enter(pair)

    def enter(self, pair: int) -> None:
        raise NotImplementedError

    def recall(self, pair: int) -> Tensor:
        """Return the state's output for the pair's own key."""
        raise NotImplementedError

    def answer(self, t: int) -> Answer:
        raise NotImplementedError

    def product(self, t: int, pair: int) -> Tensor:
        """Return φ(q_t)·φ(k)."""
        return self.head.query[t] @ self.head.key[pair]


class Summed(State):
    """Linear attention, divided by its mass or not."""

    def __init__(self, head: Head, survives: list[Tensor], normalise: bool, root: bool) -> None:
        super().__init__(head, survives)
        self.share = 1 / math.sqrt(len(head.key[0])) if root else 1.0
        self.normalise, self.total = normalise, torch.zeros(len(head.key[0]), dtype=torch.float64)

    def take(self, t: int, pairs: list[int]) -> None:
        self.total = self.survives[t] * self.total
        super().take(t, pairs)

    def enter(self, pair: int) -> None:
        key = self.head.key[pair]
        self.matrix, self.total = self.matrix + torch.outer(key, self.head.value[pair]), self.total + key

    def recall(self, pair: int) -> Tensor:
        return self._ask(self.head.key[pair]).output

    def answer(self, t: int) -> Answer:
        return self._ask(self.head.query[t])

    def _ask(self, features: Tensor) -> Answer:
        numerator, mass = features @ self.matrix, features @ self.total
        if not self.normalise:
            return Answer(self.share * numerator, None)
        return Answer(numerator / mass if mass > 0 else 0 * numerator, mass)


class Corrected(State):
    """The delta rule on features of length 1: the output for a pair's key moves towards its value by the pair's rate."""

    def __init__(self, head: Head, survives: list[Tensor], rate: list[Tensor]) -> None:
        query, key = (
            [features / features.norm() if features.any() else features for features in side] for side in (head.query, head.key)
        )
        super().__init__(Head(query, key, head.value), survives)
        self.rate = rate

    def enter(self, pair: int) -> None:
        key = self.head.key[pair]
        self.matrix = self.matrix + self.rate[pair] * torch.outer(key, self.head.value[pair] - key @ self.matrix)

    def recall(self, pair: int) -> Tensor:
        return self.head.key[pair] @ self.matrix

    def answer(self, t: int) -> Answer:
        return Answer(self.head.query[t] @ self.matrix, None)


def kept(
    sparse: Sparse,
    head: Head,
    entering: list[list[int]],
    state: State | None,
    place: tuple[int, int],
    window: Head,
    seen: list[list[int]],
) -> Iterator[list[int]]:
    """Return the pairs of LoLA's global cache at each token, older first (Appendix G with its corrections). Evicted pairs enter
    ``state``. window, seen: queries and keys as the window above rotates them, and its pairs at each token.
    """
    cache: list[int] = []
    for t, evicted in enumerate(entering):
        eligible, dropped = [*cache, *evicted], []
        if evicted and len(eligible) > sparse.size:
            scores = {pair: _score(sparse, head, state, place, window, seen, pair) for pair in eligible}
            best = best_of(eligible, scores, sparse.size)
            dropped = [pair for pair in eligible if pair not in best]
        cache = [pair for pair in eligible if pair not in dropped]
        if state is not None:
            state.take(t, dropped)
        yield cache


def best_of(eligible: list[int], scores: dict[int, tuple[float, float]], size: int) -> list[int]:
    """Return the pairs with the largest scores, older first in ``eligible``. Pairs within both resolutions of the score at place
    ``size`` count as equal, and the older stay. scores: each with its resolution.
    """
    if size == 0:
        return []
    bar, blur = sorted((scores[pair] for pair in eligible), reverse=True)[size - 1]

    def place(pair: int) -> int:
        score, resolution = scores[pair]
        return 1 if abs(score - bar) <= resolution + blur else 0 if score > bar else 2

    # Python's sort leaves equals in their order.
    return sorted(eligible, key=place)[:size]


def _score(
    sparse: Sparse, head: Head, state: State | None, place: tuple[int, int], window: Head, seen: list[list[int]], pair: int
) -> tuple[float, float]:
    """Return the pair's score and its rounding error: 16 machine epsilons of float64 of its inputs."""
    if sparse.keep.kind == "recent":
        return float(pair), 0.0
    if isinstance(sparse.keep, Random):
        return uniform(sparse.keep.seed, *place, pair), 0.0
    assert state is not None
    if sparse.keep.reads == "state":
        value, recalled = head.value[pair], state.recall(pair)
        share = value.norm().item() if sparse.keep.kind == "relative_recall" else 1.0
        error = (recalled - value).norm().item()
        return error / share, ROUNDING * (error + value.norm().item()) / share
    total = 0.0
    for t, pairs in enumerate(seen):
        if pair in pairs:
            weight = (window.query[t] @ window.key[pair] / math.sqrt(len(window.query[t]))).exp().item()
            product = state.product(t, pair).item()
            errors = {"squared_error": (weight - product) ** 2, "absolute_error": abs(weight - product)}
            total += errors.get(sparse.keep.kind, product / weight)
    return total, ROUNDING * total


def uniform(seed: int, layer: int, head: int, position: int) -> float:
    """Apply splitmix64 to the seed, then to each counter added to the result so far. Returns the upper 53 bits as a fraction."""
    bits = mixed(seed)
    for count in (layer, head, position):
        bits = mixed((bits + count) % WORD)
    return (bits >> 11) / (1 << 53)


def mixed(bits: int) -> int:
    """Return the output of splitmix64 for a state (Steele, Lea & Flood 2014, figure 16)."""
    bits = (bits + 0x9E3779B97F4A7C15) % WORD
    bits = (bits ^ bits >> 30) * 0xBF58476D1CE4E5B9 % WORD
    bits = (bits ^ bits >> 27) * 0x94D049BB133111EB % WORD
    return bits ^ bits >> 31
