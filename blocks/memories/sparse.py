"""A few pairs from anywhere, exactly: LoLA's sparse cache, which keeps what the state below it would remember worst."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal, Protocol, runtime_checkable

from pydantic import Field, NonNegativeInt

from blocks.flow import Pairs, Partial, Tokens, accumulating
from blocks.legend import Float, Int, Shape, Tensor, torch
from blocks.memories.base import Memory
from blocks.memories.falls import counter_uniform, spans
from blocks.part import Parameters, Slot, State
from blocks.positions import NoPosition
from blocks.softmax import dense

Keep = Literal["self_recall", "relative_recall", "squared_error", "absolute_error", "overestimate", "recent", "random"]


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

    As pairs fall in, they and those that are here are scored against the state below, as it was before; the ``size`` best
    stay, of equals the older, and the others fall on. Which stay is not differentiated.
    """

    equation: ClassVar[str] = "G_t = the size pairs of G_{t-1} ∪ {fallen} with the largest ‖φ(k)S/φ(k)·z - v‖; softmax over G_t"
    source: ClassVar[str] = "LoLA, arXiv:2505.23666, eq. 9 to 14, table 4 and appendix D"
    bounded: ClassVar[bool] = True
    exact: ClassVar[bool] = True
    reads: ClassVar[Literal["pairs", "features", "inputs"]] = "pairs"
    forms: ClassVar[dict[str, str]] = {"reference": "one fall after the other", "torch": "one fall after the other"}
    kind: Literal["sparse"] = "sparse"
    size: NonNegativeInt = 64
    """Pairs that each query head keeps."""
    keep: Keep = "self_recall"
    """The score: how wrong the state's own answer to the key is, ‖v̂ - v‖ (self_recall; relative_recall: by ‖v‖), how wrong the
    features' weights were while the pair stood in the window above (squared_error, absolute_error, overestimate), how late it
    came (recent: a larger window), or a number drawn from the seed, layer, head and position (random)."""
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    """Of the random score."""
    weight: Literal["learned", "token", "same"] | Annotated[float, Field(gt=0, lt=1)] | None = None  # pyright: ignore
    """As any memory's, or the same as that of the window above."""
    evict: Literal["fall", "drop"] = "fall"
    """Where evicted pairs go: into the memory below, or nowhere."""

    @property
    def asks_below(self) -> bool:
        """Whether the score looks at the state below."""
        return self.keep in {"self_recall", "relative_recall"}

    @property
    def error(self) -> str | None:
        """The error that the window above sums for the score, if any."""
        return self.keep if self.keep in {"squared_error", "absolute_error", "overestimate"} else None

    def state(self, shape: Shape) -> dict[str, Slot]:
        pair = (self.size, shape.heads, shape.head_dim)
        slots = {"key": Slot(pair, "pairs"), "value": Slot(pair, "pairs"), "position": Slot(pair[:2], "int64", -1)}
        if shape.convolved_heads:
            slots["convolved"] = Slot(pair, "pairs")
        return slots | {name: Slot(pair[:2], "state") for name, _ in shape.numbers}

    def flops(self, shape: Shape, tokens: int) -> int:
        """Attention over the cache; a score of the recall reads the state once a pair."""
        recall = 2 * (self.size + 1) * shape.features * shape.head_dim if self.asks_below else 0
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
        query = turn.rotate(query, tokens.position)
        numbers = {name: state[name] for name in state if name not in {"key", "value", "position", "convolved"}}
        convolved = state.get("convolved", state["key"])
        cache = Pairs(state["key"], convolved, state["value"], state["position"], numbers=numbers)
        if "convolved" not in state:
            pairs = replace(pairs, convolved=pairs.key)
        pairs = replace(pairs, numbers={name: pairs.numbers[name] for name in numbers})

        def held_as(these: Pairs) -> _Held:
            return _Held(these, turn.rotate(these.key, these.position), below.map(these) if below else None)

        held, answers = held_as(cache), []
        for columns, begins, falls in spans(pairs, tokens, heads):
            dropped = None
            if begins is not None:
                held = held.but(begins)
            if falls is not None:
                eligible = held.and_(held_as(falls))
                held, dropped = self._choose(eligible, below, place, begins)
            if below is not None:
                below.take(dropped.pairs if dropped else None, dropped.mapped if dropped else None, columns)
            answers.append(self._answer(query[:, columns], held))
        output, lse, largest = (torch.cat(of, dim=1) for of in zip(*answers, strict=True))
        kept = held.pairs
        carried = {"key": kept.key, "value": kept.value, "position": kept.position, **kept.numbers}
        if "convolved" in state:
            carried["convolved"] = kept.convolved
        return Partial(output, lse, maximum=largest), carried

    def _choose(self, eligible: _Held, below: Below | None, place: tuple[int, int], begins: Tensor | None) -> tuple[_Held, _Held]:
        """Those that stay and those that fall on, each in the order of their age."""
        with torch.no_grad():
            score = self._score(eligible, below, place, begins).masked_fill(~eligible.pairs.present, -math.inf)
            order = score.argsort(dim=1, descending=True, stable=True)
            stay, fall = order[:, : self.size].sort(dim=1).values, order[:, self.size :].sort(dim=1).values
        return eligible.at(stay), eligible.at(fall)

    def _score(self, eligible: _Held, below: Below | None, place: tuple[int, int], begins: Tensor | None) -> Tensor:
        pairs = eligible.pairs
        if self.keep == "recent":
            return pairs.position.double()
        if self.keep == "random":
            return counter_uniform(self.seed, *place, pairs.position)
        if not self.asks_below:
            return next(sums for name, sums in pairs.numbers.items() if name.endswith("_error"))
        assert below is not None, "the graph wires a state below"
        assert eligible.mapped is not None
        value = pairs.value.to(accumulating(pairs.value.dtype))
        predicted = below.predict(eligible.mapped).to(value.dtype)
        if begins is not None:
            predicted = predicted.masked_fill(begins[:, None, None, None], 0.0)
        error = torch.linalg.vector_norm(predicted - value, dim=-1)
        if self.keep == "self_recall":
            return error
        return error / torch.linalg.vector_norm(value, dim=-1).clamp(min=torch.finfo(value.dtype).tiny ** 0.5)

    def _answer(self, query: Tensor, held: _Held) -> tuple[Tensor, Tensor, Tensor]:
        if self.size == 0:
            nothing = query.new_full(query.shape[:3], -math.inf, dtype=accumulating(query.dtype))
            return torch.zeros_like(query), nothing, nothing
        visible = held.pairs.present.transpose(1, 2)[:, :, None].expand(-1, -1, query.shape[1], -1)
        partial = dense(query, held.turned, held.pairs.value, visible)
        assert partial.lse is not None
        assert partial.maximum is not None
        return partial.output, partial.lse, partial.maximum


@dataclass(frozen=True)
class _Held:
    """Pairs of each query head, the older first, with what is computed of them once: their keys turned, and mapped."""

    pairs: Pairs
    turned: Float[Tensor, "B E H D"]
    mapped: Float[Tensor, "B E H F"] | None

    def at(self, index: Int[Tensor, "B M H"]) -> _Held:
        """Some of them, each head its own."""

        def pick(entries: Tensor) -> Tensor:
            wide = index.view(*index.shape, *[1] * (entries.dim() - 3)).expand(*index.shape, *entries.shape[3:])
            return entries.gather(1, wide)

        return _Held(self.pairs.each(pick), pick(self.turned), None if self.mapped is None else pick(self.mapped))

    def and_(self, later: _Held) -> _Held:
        """These, and behind them those."""
        mapped = None if self.mapped is None or later.mapped is None else torch.cat((self.mapped, later.mapped), dim=1)
        return _Held(self.pairs.joined(later.pairs), torch.cat((self.turned, later.turned), dim=1), mapped)

    def but(self, rows: Tensor) -> _Held:
        """Nothing is left in these rows."""
        position = self.pairs.position.masked_fill(rows[:, None, None], -1)
        return replace(self, pairs=replace(self.pairs, position=position))
