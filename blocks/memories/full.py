"""Everything, exactly: softmax attention with a cache that grows."""

from __future__ import annotations

from functools import partial
from typing import ClassVar, Literal

from blocks.flow import Pairs, Partial, all_there
from blocks.legend import Float, Shape, Tensor, torch
from blocks.memories.base import Memory
from blocks.operation import EVERY, REFERENCE, TORCH, Call, Form, Kind, Setting
from blocks.part import Parameters, Slot, State
from blocks.softmax import dense, native, native_fits


class Full(Memory):
    """Softmax over every pair of the document. Nothing falls out, and the state grows by one pair a token."""

    equation: ClassVar[str] = "o_t = Σ_s softmax_s(q_t·k_s / √D) v_s, s ≤ t"
    source: ClassVar[str] = "Vaswani et al. 2017, arXiv:1706.03762, eq. 1"
    bounded: ClassVar[bool] = False
    exact: ClassVar[bool] = True
    grows: ClassVar[bool] = True
    reads: ClassVar[Kind] = Kind.PAIRS
    kind: Literal["full"] = "full"

    def state(self, shape: Shape) -> dict[str, Slot]:
        """The empty state."""
        return self.state_after(shape, 0)

    def state_after(self, shape: Shape, tokens: int) -> dict[str, Slot]:
        """Keys are kept rotated."""
        pair = (tokens, shape.key_heads, shape.head_dim)
        return {"key": Slot(pair, "pairs"), "value": Slot(pair, "pairs"), "position": Slot((tokens,), "int64", -1)}

    def pairs_held(self, shape: Shape, tokens: int) -> float:
        return tokens

    def forms(self, shape: Shape) -> tuple[Form, ...]:
        return (
            Form(REFERENCE, "all pairs, masked", self.answer),
            Form(TORCH, "one query against all pairs, by PyTorch's kernel", self.answer_one, native_fits, decode=True),
            Form(TORCH, "scaled_dot_product_attention", partial(self.answer, native=True), _native_fits),
            Form(TORCH, "blocks of 512 queries", self.answer),
        )

    def forms_both_ways(self, shape: Shape) -> tuple[Form, ...]:
        return (Form(EVERY, "blocks of 512 queries", self.answer_both_ways),)

    def flops(self, shape: Shape, tokens: int) -> int:
        return 4 * (tokens + 1) * shape.heads * shape.head_dim

    def prefill_flops(self, shape: Shape, tokens: int) -> int:
        return 2 * (tokens + 1) * shape.heads * shape.head_dim

    def answer(
        self, parameters: Parameters, call: Call, *, query: Float[Tensor, "B T H D"], pairs: Pairs, native: bool = False
    ) -> tuple[tuple[Partial], State]:
        """Answer the queries. native: by PyTorch's own attention, which gives no mass, and wants a pair from every token."""
        turn, tokens, state = self.turn, call.tokens, call.state
        query = call.turn(query, turn)
        earlier = state["key"].shape[1]
        key, value = _grown(state["key"], pairs.turned(turn)), _grown(state["value"], pairs.value)
        position = torch.cat((state["position"], pairs.position), dim=1)
        if native:
            answer = Partial(self._native(query, key, value, position, call, earlier), lse=None)
        else:
            answer = dense(query, key, value, self._visible(position, call, earlier), call.shape.softcap)
        if tokens.segment is not None:
            segment = tokens.extended_segment(earlier)
            position = position.masked_fill(segment != tokens.last_segment(), -1)
        return (answer,), {"key": key, "value": value, "position": position}

    def answer_one(
        self, parameters: Parameters, call: Call, *, query: Float[Tensor, "B 1 H D"], pairs: Pairs
    ) -> tuple[tuple[Partial], State]:
        """The same for one token of the document that the state belongs to."""
        key, value = _grown(call.state["key"], pairs.turned(self.turn)), _grown(call.state["value"], pairs.value)
        position = torch.cat((call.state["position"], pairs.position), dim=1)
        seen, window = position, call.shape.window
        if window is not None:
            seen = position.masked_fill(position <= call.tokens.position - window, -1)
        elif pairs.of is not None and pairs.of.once(("all",), lambda: all_there(position)):
            seen = None
        answer = native(call.turn(query, self.turn), key, value, seen)
        return (answer,), {"key": key, "value": value, "position": position}

    def _visible(self, position: Tensor, call: Call, earlier: int) -> Tensor:
        entry = torch.arange(position.shape[1], device=position.device)
        visible = (position >= 0)[:, None] & (entry <= entry[earlier:, None])
        if call.shape.window is not None:
            visible = visible & (position[:, None] > call.tokens.position[:, :, None] - call.shape.window)
        segment = call.tokens.extended_segment(earlier)
        return visible if segment is None else visible & (segment[:, earlier:, None] == segment[:, None])

    def _native(self, query: Tensor, key: Tensor, value: Tensor, position: Tensor, call: Call, earlier: int) -> Tensor:
        # Padding stands behind the real tokens, so the causal mask alone hides it from them.
        whole = call.tokens.segment is None and (call.shape.window is None or key.shape[1] <= call.shape.window)
        causal, dtype = earlier == 0 and whole, query.dtype
        # Pairs of an earlier call may be in another dtype, as where autocast begins; the wider of the two stays.
        query = query.to(key.dtype)
        mask = None
        if not causal:
            entry = torch.arange(position.shape[1], device=position.device)
            # A padding query sees itself: a row without any entry would be NaN.
            mask = (self._visible(position, call, earlier) | (entry == entry[earlier:, None]))[:, None]
        states = (states.transpose(1, 2) for states in (query, key, value))
        output = torch.nn.functional.scaled_dot_product_attention(
            *states, attn_mask=mask, is_causal=causal, enable_gqa=query.shape[2] != key.shape[2]
        )
        return output.transpose(1, 2).to(dtype)

    def problem_both_ways(self) -> None:
        return None

    def answer_both_ways(
        self, parameters: Parameters, call: Call, *, query: Float[Tensor, "B T H D"], pairs: Pairs
    ) -> tuple[tuple[Partial], State]:
        """Softmax over the whole document of each token, before and after it."""
        turn, tokens = self.turn, call.tokens
        visible = pairs.present[:, None].expand(-1, query.shape[1], -1)
        if tokens.segment is not None:
            visible = visible & (tokens.segment[:, :, None] == tokens.segment[:, None])
        answer = dense(call.turn(query, turn), pairs.turned(turn), pairs.value, visible, call.shape.softcap)
        return (answer,), {}


def _grown(held: Float[Tensor, "B E K D"], new: Float[Tensor, "B T K D"]) -> Float[Tensor, "B S K D"]:
    """Entries, and behind them the call's; those of a key head stand together in memory, as attention goes through them."""
    return torch.cat((held.transpose(1, 2), new.transpose(1, 2)), dim=2).transpose(1, 2)


def _native_fits(setting: Setting) -> str | None:
    if setting.mass_asked:
        return "PyTorch's attention gives no mass, and the read asks for it"
    if setting.capped:
        return "PyTorch's attention caps no logits"
    return None if setting.every_pair else "PyTorch's attention wants a pair from every token, and these fall out of a memory"
