"""The last tokens, exactly: a window that slides, or one that moves on by whole chunks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from pydantic import PositiveInt

from blocks.flow import Pairs, Partial, Tokens, take
from blocks.legend import Bool, Float, Int, Shape, Tensor, torch
from blocks.memories.base import Memory
from blocks.memories.errors import Compared, error_sums
from blocks.part import Parameters, Slot, State
from blocks.positions import NoPosition
from blocks.softmax import dense, windowed


class Window(Memory):
    """Softmax over the last pairs, the current one included.

    sliding: exactly ``size`` pairs, and one falls out a token: at t, that of t - size. terraced: the token's own chunk of
    ``size`` tokens and the chunk before it; as a chunk begins, all pairs of the chunk before the last fall at once. Chunks
    count from the first token of a document.
    """

    equation: ClassVar[str] = "o_t = Σ_s softmax_s(q_t·k_s / √D) v_s, t - size < s ≤ t; lse_t = log Σ_s exp(q_t·k_s / √D)"
    source: ClassVar[str] = "LoLCATs, arXiv:2410.10254; workshop paper, eq. 8; terraced: LoLA, eq. 14 (chunk-wise inference)"
    bounded: ClassVar[bool] = True
    exact: ClassVar[bool] = True
    reads: ClassVar[Literal["pairs", "features", "inputs"]] = "pairs"
    forms: ClassVar[dict[str, str]] = {
        "reference": "all pairs of a call, masked",
        "torch": "blocks of queries against their own and the previous window",
    }
    incidental: ClassVar[frozenset[str]] = Memory.incidental | {"size", "shape", "evict"}
    kind: Literal["window"] = "window"
    size: PositiveInt = 64
    """Pairs that it holds, the current token's included; of a terraced window, the tokens of a chunk."""
    shape: Literal["sliding", "terraced"] = "sliding"
    """sliding: the last `size` pairs. terraced: the own chunk of `size` tokens, up to the current one, and the one before."""
    evict: Literal["fall", "drop"] = "fall"
    """Where evicted pairs go: into the memory below, or nowhere."""

    @property
    def held(self) -> int:
        """Pairs that the state has room for."""
        return self.size if self.shape == "sliding" else 2 * self.size

    def state(self, shape: Shape) -> dict[str, Slot]:
        pair = (self.held, shape.key_heads, shape.head_dim)
        slots = {"key": Slot(pair, "pairs"), "value": Slot(pair, "pairs"), "position": Slot((self.held,), "int64", -1)}
        if self.evict == "fall":
            if shape.convolved_heads:
                slots["convolved"] = Slot((self.held, shape.convolved_heads, shape.head_dim), "pairs")
            slots |= {name: Slot((self.held, heads), "state") for name, heads in shape.numbers}
        return slots

    def flops(self, shape: Shape, tokens: int) -> int:
        seen = self.size if self.shape == "sliding" else 3 * self.size // 2
        return 4 * seen * shape.heads * shape.head_dim

    def attend(
        self,
        parameters: Parameters,
        query: Float[Tensor, "B T H D"],
        pairs: Pairs,
        tokens: Tokens,
        state: State,
        *,
        form: str,
        compared: Mapping[str, Compared] | None = None,
    ) -> tuple[Partial, State, Pairs]:
        """Answer the queries, and say which pairs fall, and when (position -1: none).

        pairs: one a token. compared: where memories below ask how far the products of features were from the exact weights
        while a pair stood here; each sum falls with the pair under its name.
        """
        length, held = query.shape[1], self.held
        earlier = {name: numbers for name, numbers in state.items() if name not in {"key", "value", "position", "convolved"}}
        before = Pairs(state["key"], state.get("convolved", state["key"]), state["value"], state["position"], numbers=earlier)
        extended = before.joined(pairs)
        segment = tokens.extended_segment(held)
        turn = self.position or NoPosition()
        key, query = turn.rotate(extended.key, extended.position), turn.rotate(query, tokens.position)
        reach = None if self.shape == "sliding" else tokens.position % self.size + self.size
        visible = Visible(extended.position, segment, held, reach)
        if form == "reference":
            partial = dense(query, key, extended.value, visible(slice(0, length), slice(0, held + length)))
        else:
            partial = windowed(query, key, extended.value, extended.present, segment, held, reach)
        for name, one in (compared or {}).items():
            sums = extended.numbers[name] + error_sums(one, query, key, extended, tokens, visible)
            extended = replace(extended, numbers={**extended.numbers, name: sums})

        held_on = extended.each(lambda entries: tokens.tail(entries, held))
        carried = {"key": held_on.key, "value": held_on.value, "position": held_on.position, **held_on.numbers}
        if "convolved" in state:
            carried["convolved"] = held_on.convolved
        current = tokens.tail_is_current(held)
        if current is not None:
            carried["position"] = carried["position"].masked_fill(~current, -1)
        fall = self._one_a_token if self.shape == "sliding" else self._chunks
        return partial, carried, fall(extended, segment, tokens)

    def problem_both_ways(self) -> str | None:
        return "a terraced window falls by chunks, which only looks back" if self.shape == "terraced" else None

    def attend_both_ways(
        self, parameters: Parameters, query: Float[Tensor, "B T H D"], pairs: Pairs, tokens: Tokens, *, form: str
    ) -> Partial:
        """Softmax over the pairs nearer than ``size``, before and after each token (Latte, section 4.4)."""
        length, position = query.shape[1], tokens.position
        turn = self.position or NoPosition()
        query, key = turn.rotate(query, position), turn.rotate(pairs.key, pairs.position)
        if form == "reference":
            entry = torch.arange(length, device=query.device)
            visible = pairs.present[:, None] & ((entry[:, None] - entry).abs() < self.size)
            if tokens.segment is not None:
                visible = visible & (tokens.segment[:, :, None] == tokens.segment[:, None])
            return dense(query, key, pairs.value, visible)

        # A window of 2·size - 1 entries that ends size - 1 entries ahead of its query.
        def around(entries: Tensor) -> Tensor:
            ends = entries[:, :0].new_zeros(entries.shape[0], 2 * self.size - 1, *entries.shape[2:])
            return torch.cat((ends[:, : self.size], entries, ends[:, self.size :]), dim=1)

        segment = None if tokens.segment is None else around(tokens.segment)
        given = around(key), around(pairs.value), around(pairs.present), segment, 2 * self.size - 1
        return windowed(query, *given, own=tokens.segment)

    def _one_a_token(self, extended: Pairs, segment: Tensor | None, tokens: Tokens) -> Pairs:
        length = tokens.position.shape[1]
        fallen = extended.each(lambda entries: entries[:, :length])
        position = fallen.position
        if segment is not None:
            position = position.masked_fill(segment[:, :length] != segment[:, self.size :], -1)
        if tokens.valid is not None:
            position = position.masked_fill(~tokens.valid, -1)
        return replace(fallen, position=position)

    def _chunks(self, extended: Pairs, segment: Tensor | None, tokens: Tokens) -> Pairs:
        """A pair falls as the second chunk begins after the one in which it entered, 2·size tokens after that one's first.

        Columns 2·size apart stand at the same place of their chunks: of an entry's own column and the size - 1 before it, the
        one that begins a chunk is where it falls.
        """
        length = tokens.position.shape[1]
        begins = tokens.position % self.size == 0
        if tokens.valid is not None:
            begins = begins & tokens.valid
        token = torch.arange(length, device=begins.device)
        following = torch.where(begins, token, length).flip(1).cummin(1).values.flip(1)
        entry = torch.arange(extended.position.shape[1], device=begins.device)
        column = following[:, (entry - self.size + 1).clamp(0, length - 1)]
        falls = extended.present & (column < length) & (entry - self.size < column) & (column <= entry)
        column = column.clamp(max=length - 1)
        if segment is not None:
            falls = falls & (segment == segment[:, -length:].gather(1, column))
        most = int(falls.sum(1).max())
        # Those that fall, in their order, and behind them, in rows where fewer fall, some that do not.
        order = (~falls).to(torch.uint8).argsort(dim=1, stable=True)[:, :most]
        fallen = extended.each(lambda entries: take(entries, order))
        there = take(falls, order)
        return replace(fallen, position=fallen.position.masked_fill(~there, -1), arrival=column.gather(1, order).cummax(1).values)


@dataclass(frozen=True)
class Visible:
    """Which of the state's and the call's entries each token of the call sees, a rectangle of it at a time."""

    position: Int[Tensor, "B E"]
    segment: Int[Tensor, "B E"] | None
    held: int
    reach: Int[Tensor, "B T"] | None

    def __call__(self, tokens: slice, entries: slice) -> Bool[Tensor, "B t e"]:
        """Token t stands at entry held + t and sees ``held`` entries, itself among them, or itself and ``reach`` before it."""
        entry = torch.arange(self.position.shape[1], device=self.position.device)
        back = entry[self.held :][tokens, None] - entry[entries]
        farthest = self.held - 1 if self.reach is None else self.reach[:, tokens, None]
        visible = (self.position[:, entries] >= 0)[:, None] & (back >= 0) & (back <= farthest)
        if self.segment is not None:
            visible = visible & (self.segment[:, self.held :][:, tokens, None] == self.segment[:, None, entries])
        return visible
