"""A few pairs from anywhere, exactly: LoLA's sparse cache, which keeps what the state below it would remember worst."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Annotated, ClassVar, Literal, Protocol, runtime_checkable

from pydantic import Field, NonNegativeInt

from blocks.flow import Pairs, Partial, Tokens, accumulating, in_all_rows, repeat_heads
from blocks.legend import Float, Int, Shape, Tensor, torch
from blocks.memories.base import Memory
from blocks.memories.falls import spans
from blocks.part import Parameters, Slot, State
from blocks.positions import NoPosition
from blocks.scores import ScoreConfig
from blocks.scores.base import Contenders, order
from blocks.scores.self_recall import SelfRecall
from blocks.softmax import dense

Held = dict[str, Tensor]
"""Pairs of each query head, the older first, B E H …: key, value, position (and convolved key) and numbers as they travel, and
what is computed of each once, where it enters: the key turned, and mapped for the state below."""


@runtime_checkable
class Below(Protocol):
    """The state memory that a sparse cache feeds: how it sees pairs, what it would answer to them, and how it takes them."""

    def map(self, pairs: Pairs) -> Float[Tensor, "B E H F"]:
        """The pairs' keys as the state sees them."""
        ...

    def predict(self, keys: Float[Tensor, "B E H F"]) -> Float[Tensor, "B E H D"]:
        """What the state, as it stands, answers to each pair's own key."""
        ...

    def take(self, pairs: Pairs | None, keys: Tensor | None, columns: slice) -> None:
        """Let the pairs, if any, fall in at the first of these tokens, time pass, and the tokens ask."""
        ...


class Sparse(Memory):
    """Softmax over ``size`` pairs that were kept of all that fell from above, each query head its own.

    As pairs fall in, they and those that are here are scored against the state below, as the token before left it: neither
    decayed by this one nor with anything in it that falls now. The ``size`` best stay, of equals the older, and the others
    fall on. Scores that rounding could swap are equal (``blocks.scores.base.order``), so that the same pairs stay however a
    text is split into calls. Which stay is not differentiated.
    """

    equation: ClassVar[str] = "G_t = the size pairs of G_{t-1} ∪ {fallen} with the largest ‖φ(k)S/φ(k)·z - v‖; softmax over G_t"
    source: ClassVar[str] = "LoLA, arXiv:2505.23666, eq. 9 to 14, table 4 and appendix D"
    bounded: ClassVar[bool] = True
    exact: ClassVar[bool] = True
    reads: ClassVar[Literal["pairs", "features", "inputs"]] = "pairs"
    forms: ClassVar[dict[str, str]] = {"reference": "one fall after the other", "torch": "one fall after the other"}
    incidental: ClassVar[frozenset[str]] = Memory.incidental | {"size", "keep", "evict"}
    kind: Literal["sparse"] = "sparse"
    size: NonNegativeInt = 64
    """Pairs that each query head keeps."""
    keep: ScoreConfig = SelfRecall()
    """The score of a pair; of equals, the older stays."""
    weight: Literal["learned", "token", "same"] | Annotated[float, Field(gt=0, lt=1)] | None = None  # pyright: ignore
    """As any memory's, or the same as that of the window above."""
    evict: Literal["fall", "drop"] = "fall"
    """Where evicted pairs go: into the memory below, or nowhere."""

    def state(self, shape: Shape) -> dict[str, Slot]:
        pair = (self.size, shape.heads, shape.head_dim)
        slots = {"key": Slot(pair, "pairs"), "value": Slot(pair, "pairs"), "position": Slot(pair[:2], "int64", -1)}
        if shape.convolved_heads:
            slots["convolved"] = Slot(pair, "pairs")
        return slots | {name: Slot(pair[:2], "state") for name, _ in shape.numbers}

    def flops(self, shape: Shape, tokens: int) -> int:
        """Attention over the cache; a score of the recall reads the state once a pair."""
        recall = 2 * (self.size + 1) * shape.features * shape.head_dim if self.keep.reads == "state" else 0
        return shape.heads * (4 * self.size * shape.head_dim + recall)

    def attend(
        self,
        parameters: Parameters,
        query: Float[Tensor, "B T H D"],
        pairs: Pairs,
        tokens: Tokens,
        state: State,
        *,
        below: Below | None,
        place: tuple[int, int] = (0, 0),
    ) -> tuple[Partial, State]:
        """Take the pairs as they fall, let the rest fall on into ``below``, and answer the queries, span by span between falls.

        place: the layer, and the first of these heads in it; the random score counts by them.
        """
        heads = query.shape[2]
        turn = self.position or NoPosition()
        numbers = [name for name in state if name not in {"key", "value", "position", "convolved"}]

        cut, falling = spans(pairs if "convolved" in state else replace(pairs, convolved=pairs.key), tokens)
        counts = [span.falls for span in cut if span.falls]

        def held_as(these: Pairs) -> Held:
            held = {name: these.numbers[name] for name in numbers} | {"key": these.key, "value": these.value}
            held["turned"] = turn.rotate(these.key, these.position)
            if below is not None and counts:
                held["mapped"] = below.map(these)
            if "convolved" in state:
                held["convolved"] = these.convolved
            held = {name: repeat_heads(entries, heads) for name, entries in held.items()}
            position = these.position if these.position.dim() == 3 else these.position[..., None].expand(-1, -1, heads)
            return held | {"position": position}

        held, falls = held_as(_as_pairs(state, numbers)), iter(_split(held_as(falling), counts) if counts else [])
        queries = turn.rotate(query, tokens.position).split([span.columns.stop - span.columns.start for span in cut], dim=1)
        answers = []
        for span, asking in zip(cut, queries, strict=True):
            dropped = None
            if span.begins is not None:
                held = held | {"position": held["position"].masked_fill(span.begins[:, None, None], -1)}
            if span.falls:
                fallen = next(falls)
                eligible = {name: torch.cat((entries, fallen[name]), dim=1) for name, entries in held.items()}
                held, dropped = self._choose(eligible, below, place, span.begins)
            if below is not None and dropped is not None:
                below.take(_as_pairs(dropped, numbers), dropped["mapped"], span.columns)
            elif below is not None:
                below.take(None, None, span.columns)
            answers.append(self._answer(asking, held))
        output, lse, largest = (torch.cat(of, dim=1) for of in zip(*answers, strict=True))
        return Partial(output, lse, maximum=largest), {name: held[name] for name in state}

    def _choose(self, eligible: Held, below: Below | None, place: tuple[int, int], begins: Tensor | None) -> tuple[Held, Held]:
        """Those that stay and those that fall on, each in the order of their age."""
        with torch.no_grad():
            contenders = self._contenders(eligible, below, place, begins)
            score = self.keep.score(contenders)
            resolution = self.keep.resolution(contenders, score)
            first = order(score.masked_fill(eligible["position"] < 0, -math.inf), resolution, self.size)
            stay, fall = first[:, : self.size].sort(dim=1).values, first[:, self.size :].sort(dim=1).values
        return _at(eligible, stay), _at(eligible, fall)

    def _contenders(self, eligible: Held, below: Below | None, place: tuple[int, int], begins: Tensor | None) -> Contenders:
        value = eligible["value"].to(accumulating(eligible["value"].dtype))
        answered = None
        if self.keep.reads == "state":
            assert below is not None, "the graph wires a state below"
            answered = below.predict(eligible["mapped"]).to(value.dtype)
            if begins is not None:
                answered = answered.masked_fill(begins[:, None, None, None], 0.0)
        errors = next((sums for name, sums in eligible.items() if name.endswith("_error")), None)
        return Contenders(eligible["position"], value, answered, errors, place)

    def _answer(self, query: Tensor, held: Held) -> tuple[Tensor, Tensor, Tensor]:
        if self.size == 0:
            nothing = query.new_full(query.shape[:3], -math.inf, dtype=accumulating(query.dtype))
            return torch.zeros_like(query), nothing, nothing
        visible = (held["position"] >= 0).transpose(1, 2)[:, :, None].expand(-1, -1, query.shape[1], -1)
        partial = dense(query, held["turned"], held["value"], visible)
        assert partial.lse is not None
        assert partial.maximum is not None
        return partial.output, partial.lse, partial.maximum


def _as_pairs(held: Held, numbers: list[str]) -> Pairs:
    """What is held, as it falls on."""
    brought = {name: held[name] for name in numbers}
    return Pairs(held["key"], held.get("convolved", held["key"]), held["value"], held["position"], numbers=brought)


def _split(held: Held, counts: list[int]) -> list[Held]:
    """So many of them after the other."""
    pieces = {name: entries.split(counts, dim=1) for name, entries in held.items()}
    return [{name: of[index] for name, of in pieces.items()} for index in range(len(counts))]


def _at(held: Held, index: Int[Tensor, "B M H"]) -> Held:
    """Some of them, each head its own."""
    heads = torch.arange(index.shape[2], device=index.device)
    place = in_all_rows((index * index.shape[2] + heads).flatten(1), held["key"].shape[1] * index.shape[2]).flatten()
    return {name: entries.flatten(0, 2).index_select(0, place).unflatten(0, index.shape) for name, entries in held.items()}
