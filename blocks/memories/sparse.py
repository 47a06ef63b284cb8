"""A few pairs from anywhere, exactly: LoLA's sparse cache, which keeps what the state below it would remember worst."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Annotated, ClassVar, Literal

from pydantic import Field, NonNegativeInt

from blocks.flow import Pairs, Partial
from blocks.legend import Bool, Float, Int, Number, Shape, Tensor, torch
from blocks.memories.base import Memory, Misplaced
from blocks.memories.candidates import HeadEntries, by_heads, concatenate_by_heads, eviction_bias, select, select_by_heads
from blocks.memories.recurrent import Recurrent
from blocks.memories.state_below import StateBelow
from blocks.memories.stored_pairs import Holding, pairs_of
from blocks.memories.window import Window
from blocks.operation import EVERY, TORCH, Call, Form, Setting, Slot, State, no_obstacle, row_obstacle
from blocks.part import Parameters
from blocks.scores import ScoreConfig
from blocks.scores.base import Contenders, pairs_to_evict
from blocks.scores.self_recall import SelfRecall
from blocks.softmax import dense, native, native_obstacle, native_step, native_step_obstacle, single
from blocks.tensors import accumulating, as_dtype, repeat_heads, take

Attend = Callable[..., Partial]
Way = tuple[str, str, Attend, Callable[[Setting], str | None]]
"""A form's backend, the end of its description, the function that computes attention, and the form's ``obstacle``."""
STEP = "the pairs that arrive at the token, then one query over the kept pairs"
STEPS: tuple[Way, ...] = ((TORCH, ", by PyTorch's kernel", native_step, native_step_obstacle), (TORCH, "", single, row_obstacle))
ONE_BY_ONE = "one eviction after the other"
BLOCKS: tuple[Way, ...] = ((TORCH, ", by PyTorch's kernel", native, native_obstacle), (EVERY, "", dense, no_obstacle))
BLOCK = 64
"""Tokens that are computed at once. Each attends to the pairs kept before them and to all pairs received among them, masked as
needed."""


class Sparse(Holding):
    """Softmax over the ``size`` pairs that were kept of all that the memory above evicted; each query head has its own pairs. New
    pairs and those in the cache are scored against the state below after the previous token: without this token's decay and without
    pairs evicted at this token. The ``size`` pairs with the largest scores are kept, the older of two equal ones, and the others
    are evicted. Scores that differ by no more than their own rounding errors are equal
    (``blocks.scores.base.pairs_to_evict``), so that pairs of repeated tokens are kept by age, however a text is split into calls.
    The choice has no gradient.
    """

    equation: ClassVar[str] = "G_t = the size pairs of G_{t-1} ∪ {evicted} with the largest ‖φ(k)S/φ(k)·z - v‖; softmax over G_t"
    source: ClassVar[str] = "LoLA, arXiv:2505.23666, eq. 9 to 14, table 4 and appendix D"
    per_query_head: ClassVar[bool] = True
    takes_several: ClassVar[bool] = True
    incidental: ClassVar[frozenset[str]] = Holding.incidental | {"keep"}
    kind: Literal["sparse"] = "sparse"
    size: NonNegativeInt = 64
    """Pairs that each query head keeps."""
    keep: ScoreConfig = SelfRecall()
    """The score of a pair. Of two equal pairs, the older is kept."""
    weight: Literal["learned", "token", "same"] | Annotated[float, Field(gt=0, lt=1)] | None = None  # pyright: ignore
    """As any memory's, or the same as that of the window above."""

    @property
    def declared_size(self) -> int:
        return self.size

    def state(self, shape: Shape) -> dict[str, Slot]:
        return self.slots(shape, self.size)

    @property
    def reads_below(self) -> bool:
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

    def problem_between(self, above: Sequence[Memory], below: Mapping[str, Memory], *, edges: bool) -> Iterator[Misplaced]:
        wrong = [name for number, (name, memory) in enumerate(below.items()) if number or not isinstance(memory, Recurrent)]
        for name in wrong:
            yield (
                "a sparse cache can evict into one state only; "
                + (f"use the edge `pairs -> {name}`" if edges else "put a `state` (or `delta`) memory below it"),
                name,
            )
        if not below and self.keep.reads != "pair":
            yield (
                f"`keep: {self.keep.kind}` compares a pair with the state below, and there is none; "
                + (f"add an edge `{self.called} -> NAME` to a `state`" if edges else "add a `state` memory")
                + ", or keep `recent` or `random` pairs",
                ("keep",),
            )
        if self.keep.reads == "window" and not isinstance(next(iter(above), None), Window):
            yield (
                f"`keep: {self.keep.kind}` sums over the queries that saw a pair in the window above, and there is none; "
                + ("let it get its pairs from a `window`" if edges else "put a `window` above it")
                + ", or choose another score",
                ("keep",),
            )
        if self.weight == "same" and not (above and above[0].exact and above[0].weight is not None):
            yield (
                "`weight: same` uses the weight of the exact memory above, which has none; set `weight` on the memory above, or "
                "another `weight` here",
                ("weight",),
            )

    def why_slow(self, shape: Shape) -> str | None:
        if shape.arriving > 1:
            return None
        return (
            "the memory above evicts one pair a token, so the cache is updated token by token, several times slower in prefill and "
            "training. Set `shape: terraced` on the window above, which evicts a chunk of pairs at once"
        )

    def forms(self, shape: Shape) -> tuple[Form, ...]:
        """Alone: above a state, the two are one step (``blocks.memories.sparse_above_state``)."""
        if shape.features:
            return ()
        steps = [
            Form(on, STEP + words, partial(self.compute_step, attention=attend), obstacle, decode=True)
            for on, words, attend, obstacle in STEPS
        ]
        evictions = [
            Form(on, ONE_BY_ONE + words, partial(self.compute_output, attention=attend), obstacle)
            for on, words, attend, obstacle in BLOCKS
        ]
        return (*steps, *evictions)

    def compute_output(
        self, parameters: Parameters, call: Call, *, query: Float[Tensor, "B T H D"], pairs: Pairs, attention: Attend
    ) -> tuple[tuple[Partial, None], State]:
        """Return the partial of a cache without a state below it, and the cache's new state."""
        partial, state = self.attend(parameters, query, pairs, call, below=None, attention=attention)
        return (partial, None), state

    def compute_step(
        self, parameters: Parameters, call: Call, *, query: Float[Tensor, "B 1 H D"], pairs: Pairs | None, attention: Attend
    ) -> tuple[tuple[Partial, None], State]:
        """Return the partial of a cache without a state below it, for one token, and the cache's new state."""
        result, _, _, state = self.step(parameters, query, pairs, call, below=None, attention=attention)
        return (result, None), state

    def flops(self, shape: Shape, tokens: int) -> int:
        """Attention over the cache. At every eviction a score of recall reads the state for each pair in the cache and each new
        one."""
        scored = self.size + shape.arriving if self.keep.reads == "state" else 0
        recall = 2 * scored * shape.features * shape.value_dim // shape.arriving
        return shape.heads * (2 * self.size * (shape.head_dim + shape.value_dim) + recall)

    def attend(
        self,
        parameters: Parameters,
        query: Float[Tensor, "B T H D"],
        pairs: Pairs,
        call: Call,
        *,
        below: StateBelow | None,
        attention: Attend,
    ) -> tuple[Partial, State]:
        """Add the pairs as they arrive, evict the others into ``below``, and compute the outputs, block by block."""
        length, max_per_token, tokens = query.shape[1], pairs.max_per_token, call.tokens
        column = torch.arange(length, device=query.device).expand(query.shape[0], -1)
        arrival = column if pairs.arrival is None else pairs.arrival
        size = max_per_token * max(1, BLOCK // max_per_token)
        cache = self._as_mapped_entries(pairs_of(call.state, self.rotation), call, below)
        new_entries = self._as_mapped_entries(pairs, call, below)
        if tokens.segment is not None:
            cache["segment"] = torch.zeros_like(cache["position"])
            new_entries["segment"] = take(tokens.segment, arrival)[..., None].expand_as(new_entries["position"])
        cache = {name: by_heads(entries) for name, entries in cache.items()}
        blocks = {name: entries.to(cache[name].dtype).split(size, dim=1) for name, entries in new_entries.items()}
        partials: list[Partial] = []
        for index, (block_query, columns, evictions) in enumerate(
            zip(*(tensor.split(size, dim=1) for tensor in (query, column, arrival)), strict=True)
        ):
            candidates = {name: concatenate_by_heads(entries, blocks[name][index]) for name, entries in cache.items()}
            members, eviction_number = self._evict_block(candidates, evictions, max_per_token, call, below)
            if self.size:
                bias = eviction_bias(candidates, columns, evictions, max_per_token, eviction_number, tokens)
                partials.append(attention(block_query, candidates["key"], candidates["value"], bias, call.shape.softcap))
            else:
                partials.append(_nothing(block_query))
            cache = select_by_heads(candidates, members)
        if tokens.segment is not None:
            cache["position"] = cache["position"].masked_fill(cache["segment"] != tokens.last_segment()[..., None], -1)
        return _concatenate(partials), {name: cache[name].contiguous() for name in call.state}

    def _evict_block(
        self, candidates: HeadEntries, evictions: Int[Tensor, "B e"], max_per_token: int, call: Call, below: StateBelow | None
    ) -> tuple[Int[Tensor, "B M H"], Int[Tensor, "B E H"]]:
        """Add the pairs that arrive in a block, one group after the other. Return which candidates are kept after the last group,
        and the number of the eviction, from 1, by which each candidate leaves; the number of evictions + 1 if it is kept."""
        present, segment, worth = candidates["position"] >= 0, call.tokens.segment, None
        is_evicted = torch.zeros_like(present)
        eviction_number = torch.full_like(candidates["position"], evictions.shape[1] // max_per_token + 1)
        if below is not None:
            below.set_pairs(self._as_pairs(candidates, call), candidates["mapped"])
        for first in range(0, evictions.shape[1], max_per_token):
            column, among = evictions[:, first], slice(self.size + first + max_per_token)
            if below is not None and self.keep.reads == "state":
                below.reach(column)
            if self.keep.reads == "state" or worth is None:
                worth = self._score(candidates, below, call.place)
            pairs = present[:, among]
            if segment is not None:
                pairs = pairs & (candidates["segment"][:, among] == segment.gather(1, column[:, None])[..., None])
            score, resolution = (tensor[:, among] for tensor in worth)
            chosen = pairs_to_evict(score, resolution, pairs, is_evicted[:, among], pairs.shape[1] - first - self.size)
            is_evicted.scatter_(1, chosen, True)
            eviction_number.scatter_(1, chosen, first // max_per_token + 1)
            if below is not None:
                below.evict(chosen, pairs.gather(1, chosen), column)
        return self._kept_index(is_evicted), eviction_number

    def step(
        self,
        parameters: Parameters,
        query: Float[Tensor, "B 1 H D"],
        pairs: Pairs | None,
        call: Call,
        *,
        below: StateBelow | None,
        attention: Attend,
    ) -> tuple[Partial, Pairs | None, Float[Tensor, "B E H F"] | None, State]:
        """``attend`` for one token: return its output, the evicted pairs with their mapped keys, and the new state."""
        state, evicted, mapped = call.state, None, None
        if pairs is not None:
            new_entries = self._as_entries(pairs, call)
            candidates = {name: torch.cat((entries, new_entries[name].to(entries.dtype)), dim=1) for name, entries in state.items()}
            if self.keep.reads == "state":
                assert below is not None, "the graph wires a state below"
                candidate_pairs = self._as_pairs(candidates, call)
                candidates |= {
                    "mapped": repeat_heads(below.map(candidate_pairs), query.shape[2]),
                    "norm": _norm(candidates["value"]),
                }
                below.set_pairs(candidate_pairs, candidates["mapped"])
            present = candidates["position"] >= 0
            is_evicted = torch.zeros_like(present)
            chosen = pairs_to_evict(*self._score(candidates, below, call.place), present, is_evicted, present.shape[1] - self.size)
            kept_entries = select(candidates, self._kept_index(is_evicted.scatter(1, chosen, True)))
            evicted_entries = select(candidates, chosen)
            evicted, state = self._as_pairs(evicted_entries, call), {name: kept_entries[name] for name in state}
            if below is not None:
                mapped = evicted_entries["mapped"] if "mapped" in evicted_entries else below.map(evicted)
        if self.size == 0:
            result = _nothing(query)
        else:
            result = attention(query, state["key"], state["value"], state["position"], None, call.shape.softcap)
        return result, evicted, mapped, state

    def _as_entries(self, pairs: Pairs, call: Call) -> HeadEntries:
        """Return the pairs in the form of the state: those of each query head, with rotated keys."""
        convolved = {} if pairs.convolved is None else {"convolved": pairs.convolved}
        head_entries = {name: entries for name, entries in {**pairs.numbers, **convolved}.items() if name in call.state}
        head_entries |= {"key": pairs.rotate(self.rotation), "value": pairs.value}
        head_entries = {name: repeat_heads(entries, call.shape.heads) for name, entries in head_entries.items()}
        position = pairs.position if pairs.position.dim() == 3 else pairs.position[..., None].expand(-1, -1, call.shape.heads)
        return head_entries | {"position": position}

    def _as_mapped_entries(self, pairs: Pairs, call: Call, below: StateBelow | None) -> HeadEntries:
        """Return the pairs in the form of the state, with their mapped keys and the norms of their values, which are computed
        once."""
        entries = self._as_entries(pairs, call)
        if below is not None:
            pairs = pairs if "convolved" in call.state else replace(pairs, convolved=None)
            entries["mapped"] = repeat_heads(below.map(pairs), call.shape.heads)
        if self.keep.reads == "state":
            entries["norm"] = _norm(entries["value"])
        return entries

    def _as_pairs(self, entries: HeadEntries, call: Call) -> Pairs:
        """Return the pairs of the cache in the form of evicted pairs."""
        return pairs_of({name: entries[name] for name in call.state}, self.rotation)

    def _score(self, candidates: HeadEntries, below: StateBelow | None, place: tuple[int, int]) -> tuple[Tensor, Tensor]:
        """Return each pair's score, and its resolution: B E H."""
        with torch.no_grad():
            value, distance = as_dtype(candidates["value"], accumulating(candidates["value"].dtype)), None
            if self.keep.reads == "state":
                assert below is not None, "the graph wires a state below"
                distance = below.distances()
            errors, norm = candidates.get(self._sum), candidates.get("norm")
            contenders = Contenders(candidates["position"], value, distance, norm, errors, place)
            score = self.keep.score(contenders)
            return score, self.keep.resolution(contenders, score)

    def _kept_index(self, is_evicted: Bool[Tensor, "B E H"]) -> Int[Tensor, "B S H"]:
        """Return the kept pairs by age."""
        return is_evicted.to(torch.int8).argsort(dim=1, stable=True)[:, : self.size]


def _norm(value: Float[Tensor, "B E H V"]) -> Float[Tensor, "B E H"]:
    """Return the length of each value, which only the choice of pairs needs."""
    return torch.linalg.vector_norm(value.detach().to(accumulating(value.dtype)), dim=-1)


def _nothing(query: Tensor) -> Partial:
    """Return the partial of a cache of size 0: no pair, and an output of 0."""
    empty = query.new_full(query.shape[:3], -math.inf, dtype=accumulating(query.dtype))
    return Partial(torch.zeros_like(query), empty, maximum=empty)


def _concatenate(partials: list[Partial]) -> Partial:
    """Concatenate the partials of blocks of tokens."""
    output, lse = (torch.cat(blocks, dim=1) for blocks in zip(*((item.output, item.lse) for item in partials), strict=True))
    largest = [item.maximum for item in partials if item.maximum is not None]
    return Partial(output, lse, maximum=torch.cat(largest, dim=1) if largest else None)
