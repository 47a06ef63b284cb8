"""A few pairs from anywhere, exactly: LoLA's sparse cache, which keeps what the state below it would remember worst."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Annotated, ClassVar, Literal, Protocol, Self, runtime_checkable

from pydantic import Field, NonNegativeInt

from blocks.flow import Pairs, Partial, accumulating, in_all_rows, repeat_heads
from blocks.legend import Float, Int, Number, Shape, Tensor, torch
from blocks.memories.base import Memory, Path
from blocks.memories.falls import spans
from blocks.memories.holding import PAIR
from blocks.memories.recurrent import Recurrent
from blocks.memories.window import Window
from blocks.operation import EVERY, TORCH, Call, Form, Kind, unbroken
from blocks.part import Parameters, Slot, State
from blocks.scores import ScoreConfig
from blocks.scores.base import Contenders, order
from blocks.scores.self_recall import SelfRecall
from blocks.softmax import dense, native, native_fits, single

Attention = Callable[..., Partial]
STEP = "what falls in at the token, then one query against what is kept"
Held = dict[str, Tensor]
"""Pairs of each query head, the older first, B E H …: the key, turned, value, position (and convolved key) and numbers as they
travel, and what is computed of each once, where it enters: the key mapped for the state below."""


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
    reads: ClassVar[Kind] = Kind.PAIRS
    per_query_head: ClassVar[bool] = True
    takes_several: ClassVar[bool] = True
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
        """Keys are kept turned."""
        pair = (self.size, shape.heads, shape.head_dim)
        slots = {"key": Slot(pair, "pairs"), "value": Slot(pair, "pairs"), "position": Slot(pair[:2], "int64", -1)}
        if shape.convolved_heads:
            slots["convolved"] = Slot(pair, "pairs")
        return slots | {number.name: Slot(pair[:2], "state") for number in shape.numbers}

    @property
    def drops(self) -> bool:
        return self.evict == "drop"

    def dropping(self) -> Self:
        return self.model_copy(update={"evict": "drop"})

    @property
    def looks_below(self) -> bool:
        return True

    @property
    def chooses_by_value(self) -> bool:
        return self.keep.reads == "state"

    @property
    def _sum(self) -> str:
        return f"{self.called}_error"

    def sums(self, shape: Shape) -> tuple[Number, ...]:
        return (Number(self._sum, shape.heads, self.keep.error),) if self.keep.reads == "window" else ()

    def pairs_held(self, shape: Shape, tokens: int) -> float:
        return self.size

    def problem_between(self, above: Memory | None, below: Mapping[str, Memory], *, edges: bool) -> Iterator[tuple[str, Path]]:
        wrong = [name for number, (name, one) in enumerate(below.items()) if number or not isinstance(one, Recurrent)]
        for name in wrong:
            yield (
                "what falls out of a sparse cache goes into one state; "
                + (f"say `pairs -> {name}`" if edges else "put a `state` (or `delta`) memory below it"),
                ("graph", name) if edges else (),
            )
        if not below and self.keep.reads != "pair":
            yield (
                f"`keep: {self.keep.kind}` compares a pair with the state below, and there is none; "
                + (f"add an edge `{self.called} -> NAME` to a `state`" if edges else "add a `state` memory")
                + ", or keep `recent` or `random` pairs",
                ("keep",),
            )
        if self.keep.reads == "window" and not isinstance(above, Window):
            yield (
                f"`keep: {self.keep.kind}` sums over the queries that saw a pair in the window above, and there is none; "
                + ("let it get its pairs from a `window`" if edges else "put a `window` above it")
                + ", or choose another score",
                ("keep",),
            )
        if self.weight == "same" and (above is None or not above.exact or above.weight is None):
            yield (
                "`weight: same` takes the weight of the exact memory above, and there is none; "
                "give the memory above a `weight`, or this one its own",
                ("weight",),
            )

    def forms(self, shape: Shape) -> tuple[Form, ...]:
        """Alone: above a state, the two are one step (``blocks.memories.sparse_above_state``)."""
        if shape.features:
            return ()
        steps = (
            Form(TORCH, f"{STEP}, by PyTorch's kernel", partial(self.answer_one, attention=native), native_fits, decode=True),
            Form(TORCH, STEP, partial(self.answer_one, attention=single), unbroken, decode=True),
        )
        return (*steps, Form(EVERY, "one fall after the other", self.answer))

    def answer(
        self, parameters: Parameters, call: Call, *, query: Float[Tensor, "B T H D"], pairs: Pairs
    ) -> tuple[tuple[Partial, None], State]:
        """What falls out of it goes nowhere."""
        partial, state = self.attend(parameters, query, pairs, call, below=None)
        return (partial, None), state

    def answer_one(
        self, parameters: Parameters, call: Call, *, query: Float[Tensor, "B 1 H D"], pairs: Pairs | None, attention: Attention
    ) -> tuple[tuple[Partial, None], State]:
        """The same for one token."""
        answer, _, _, state = self.step(parameters, query, pairs, call, below=None, attention=attention)
        return (answer, None), state

    def flops(self, shape: Shape, tokens: int) -> int:
        """Attention over the cache; a score of the recall reads the state once a pair."""
        recall = 2 * (self.size + 1) * shape.features * shape.head_dim if self.keep.reads == "state" else 0
        return shape.heads * (4 * self.size * shape.head_dim + recall)

    def attend(
        self,
        parameters: Parameters,
        query: Float[Tensor, "B T H D"],
        pairs: Pairs,
        call: Call,
        *,
        below: Below | None,
    ) -> tuple[Partial, State]:
        """Take the pairs as they fall, let the rest fall on into ``below``, and answer the queries, span by span between falls."""
        heads, turn, tokens, state, place = query.shape[2], self.turn, call.tokens, call.state, call.place
        numbers = [name for name in state if name not in PAIR]

        cut, falling = spans(pairs if "convolved" in state else replace(pairs, convolved=pairs.key), tokens)
        counts = [span.falls for span in cut if span.falls]

        def held_as(these: Pairs) -> Held:
            held = self._held(these, state, heads)
            return held | {"mapped": repeat_heads(below.map(these), heads)} if below is not None and counts else held

        held, falls = held_as(self._as_pairs(state, numbers)), iter(_split(held_as(falling), counts) if counts else [])
        queries = call.turn(query, turn).split([span.columns.stop - span.columns.start for span in cut], dim=1)
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
                below.take(self._as_pairs(dropped, numbers), dropped["mapped"], span.columns)
            elif below is not None:
                below.take(None, None, span.columns)
            answers.append(self._answer(asking, held))
        output, lse, largest = (torch.cat(of, dim=1) for of in zip(*answers, strict=True))
        return Partial(output, lse, maximum=largest), {name: held[name] for name in state}

    def step(
        self,
        parameters: Parameters,
        query: Float[Tensor, "B 1 H D"],
        pairs: Pairs | None,
        call: Call,
        *,
        below: Below | None,
        attention: Attention,
    ) -> tuple[Partial, Pairs | None, Float[Tensor, "B E H F"] | None, State]:
        """``attend`` for one token: its answer, what falls on, the mapped keys of that, and the new state."""
        heads, state, falling, mapped = query.shape[2], call.state, None, None
        if pairs is not None:
            numbers = [name for name in state if name not in PAIR]
            arriving = self._held(pairs if "convolved" in state else replace(pairs, convolved=pairs.key), state, heads)
            eligible = {name: torch.cat((entries, arriving[name].to(entries.dtype)), dim=1) for name, entries in state.items()}
            if self.keep.reads == "state":
                assert below is not None, "the graph wires a state below"
                eligible["mapped"] = repeat_heads(below.map(self._as_pairs(eligible, numbers)), heads)
            held, dropped = self._choose(eligible, below, call.place, None)
            falling, state = self._as_pairs(dropped, numbers), {name: held[name] for name in state}
            if below is not None:
                mapped = dropped["mapped"] if "mapped" in dropped else below.map(falling)
        if self.size == 0:
            output, lse, largest = self._answer(query, state)
            answer = Partial(output, lse, maximum=largest)
        else:
            answer = attention(call.turn(query, self.turn), state["key"], state["value"], state["position"])
        return answer, falling, mapped, state

    def _held(self, pairs: Pairs, state: State, heads: int) -> Held:
        """Pairs as the state has them: of each query head, their keys turned."""
        held = {name: entries for name, entries in pairs.numbers.items() if name in state}
        held |= {"key": pairs.turned(self.turn), "value": pairs.value}
        if "convolved" in state:
            held["convolved"] = pairs.convolved
        held = {name: repeat_heads(entries, heads) for name, entries in held.items()}
        position = pairs.position if pairs.position.dim() == 3 else pairs.position[..., None].expand(-1, -1, heads)
        return held | {"position": position}

    def _as_pairs(self, held: Held, numbers: list[str]) -> Pairs:
        """What is held, as it falls on."""
        brought = {name: held[name] for name in numbers}
        convolved = held.get("convolved", held["key"])
        return Pairs(held["key"], convolved, held["value"], held["position"], numbers=brought, by=self.turn)

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
        return Contenders(eligible["position"], value, answered, eligible.get(self._sum), place)

    def _answer(self, query: Tensor, held: Held) -> tuple[Tensor, Tensor, Tensor]:
        if self.size == 0:
            nothing = query.new_full(query.shape[:3], -math.inf, dtype=accumulating(query.dtype))
            return torch.zeros_like(query), nothing, nothing
        visible = (held["position"] >= 0).transpose(1, 2)[:, :, None].expand(-1, -1, query.shape[1], -1)
        partial = dense(query, held["key"], held["value"], visible)
        assert partial.lse is not None
        assert partial.maximum is not None
        return partial.output, partial.lse, partial.maximum


def _split(held: Held, counts: list[int]) -> list[Held]:
    """So many of them after the other."""
    pieces = {name: entries.split(counts, dim=1) for name, entries in held.items()}
    return [{name: of[index] for name, of in pieces.items()} for index in range(len(counts))]


def _at(held: Held, index: Int[Tensor, "B M H"]) -> Held:
    """Some of them, each head its own."""
    heads = torch.arange(index.shape[2], device=index.device)
    place = in_all_rows((index * index.shape[2] + heads).flatten(1), held["key"].shape[1] * index.shape[2]).flatten()
    return {name: entries.flatten(0, 2).index_select(0, place).unflatten(0, index.shape) for name, entries in held.items()}
