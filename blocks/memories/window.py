"""The last tokens, exactly: sliding-window attention."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar, Literal

from pydantic import PositiveInt

from blocks.flow import Pairs, Partial, Tokens
from blocks.legend import Float, Shape, Tensor, torch
from blocks.memories.base import Memory
from blocks.part import Parameters, Slot, State
from blocks.positions import NoPosition
from blocks.softmax import dense, windowed


class Window(Memory):
    """Softmax over the last ``size`` pairs, the current one included. One pair falls out a token: at t, that of t - size."""

    equation: ClassVar[str] = "o_t = Σ_s softmax_s(q_t·k_s / √D) v_s, t - size < s ≤ t; lse_t = log Σ_s exp(q_t·k_s / √D)"
    source: ClassVar[str] = "LoLCATs, arXiv:2410.10254; workshop paper, eq. 8"
    bounded: ClassVar[bool] = True
    reads: ClassVar[Literal["pairs", "features"]] = "pairs"
    forms: ClassVar[dict[str, str]] = {
        "reference": "all pairs of a call, masked",
        "torch": "blocks of queries against their own and the previous window",
    }
    kind: Literal["window"] = "window"
    size: PositiveInt = 64
    """Pairs that it holds, the current token's included."""
    evict: Literal["fall", "drop"] = "fall"
    """Where evicted pairs go: into the memory below, or nowhere."""

    def state(self, shape: Shape) -> dict[str, Slot]:
        pair = (self.size, shape.key_heads, shape.head_dim)
        slots = {"key": Slot(pair, "pairs"), "value": Slot(pair, "pairs"), "position": Slot((self.size,), "int64", -1)}
        if shape.convolved_heads and self.evict == "fall":
            slots["convolved"] = Slot((self.size, shape.convolved_heads, shape.head_dim), "pairs")
        return slots

    def flops(self, shape: Shape, tokens: int) -> int:
        return 4 * self.size * shape.heads * shape.head_dim

    def attend(
        self,
        parameters: Parameters,
        query: Float[Tensor, "B T H D"],
        pairs: Pairs,
        tokens: Tokens,
        state: State,
        *,
        form: str,
    ) -> tuple[Partial, State, Pairs]:
        """Answer the queries, and say which pair falls at each token (position -1: none)."""
        length = query.shape[1]
        key = torch.cat((state["key"], pairs.key), dim=1)
        value = torch.cat((state["value"], pairs.value), dim=1)
        position = torch.cat((state["position"], pairs.position), dim=1)
        segment = tokens.extended_segment(self.size)
        turn = self.position or NoPosition()
        turned = turn.rotate(key, position)
        query = turn.rotate(query, tokens.position)
        if form == "reference":
            partial = dense(query, turned, value, self._visible(position, segment, length))
        else:
            partial = windowed(query, turned, value, position >= 0, segment, self.size)

        fallen_position = position[:, :length]
        if segment is not None:
            fallen_position = fallen_position.masked_fill(segment[:, :length] != segment[:, self.size :], -1)
        if tokens.valid is not None:
            fallen_position = fallen_position.masked_fill(~tokens.valid, -1)
        carried = {name: tokens.tail(entries, self.size) for name, entries in (("key", key), ("value", value))}
        carried["position"] = tokens.tail(position, self.size)
        current = tokens.tail_is_current(self.size)
        if current is not None:
            carried["position"] = carried["position"].masked_fill(~current, -1)
        convolved = key
        if "convolved" in state:
            convolved = torch.cat((state["convolved"], pairs.convolved), dim=1)
            carried["convolved"] = tokens.tail(convolved, self.size)
        fallen = Pairs(key[:, :length], convolved[:, :length], value[:, :length], fallen_position)
        return replace(partial, logit=self.logit(parameters, partial.output)), carried, fallen

    def _visible(self, position: Tensor, segment: Tensor | None, length: int) -> Tensor:
        entry = torch.arange(position.shape[1], device=position.device)
        back = entry[self.size :, None] - entry
        visible = (position >= 0)[:, None] & (back >= 0) & (back < self.size)
        assert visible.shape[1] == length
        if segment is not None:
            visible = visible & (segment[:, self.size :, None] == segment[:, None])
        return visible
