"""Everything, exactly: softmax attention with a cache that grows."""

from __future__ import annotations

from typing import ClassVar, Literal

from blocks.flow import Pairs, Partial, Tokens
from blocks.legend import Float, Shape, Tensor, torch
from blocks.memories.base import Memory
from blocks.part import Parameters, Slot, State
from blocks.positions import NoPosition
from blocks.softmax import dense


class Full(Memory):
    """Softmax over every pair of the document. Nothing falls out, and the state grows by one pair a token."""

    equation: ClassVar[str] = "o_t = Σ_s softmax_s(q_t·k_s / √D) v_s, s ≤ t"
    source: ClassVar[str] = "Vaswani et al. 2017, arXiv:1706.03762, eq. 1"
    bounded: ClassVar[bool] = False
    exact: ClassVar[bool] = True
    reads: ClassVar[Literal["pairs", "features", "inputs"]] = "pairs"
    forms: ClassVar[dict[str, str]] = {
        "reference": "all pairs, masked",
        "torch": "blocks of 512 queries",
    }
    plain_form: ClassVar[str] = "scaled_dot_product_attention"
    """The torch backend's form where every token brings its pair and nobody asks for the mass."""
    kind: Literal["full"] = "full"

    def state(self, shape: Shape) -> dict[str, Slot]:
        """The empty state; ``grown`` says what it is after some tokens."""
        return self.grown(shape, 0)

    def grown(self, shape: Shape, tokens: int) -> dict[str, Slot]:
        """The state after ``tokens`` tokens. Keys are kept rotated."""
        pair = (tokens, shape.key_heads, shape.head_dim)
        return {"key": Slot(pair, "pairs"), "value": Slot(pair, "pairs"), "position": Slot((tokens,), "int64", -1)}

    def flops(self, shape: Shape, tokens: int) -> int:
        return 4 * (tokens + 1) * shape.heads * shape.head_dim

    def prefill_flops(self, shape: Shape, tokens: int) -> int:
        return 2 * (tokens + 1) * shape.heads * shape.head_dim

    def attend(
        self,
        parameters: Parameters,
        query: Float[Tensor, "B T H D"],
        pairs: Pairs,
        tokens: Tokens,
        state: State,
        *,
        form: str,
        plain: bool,
    ) -> tuple[Partial, State]:
        """Answer the queries. plain: every token brings its pair and nobody asks for the mass; PyTorch's own attention does it."""
        turn = self.position or NoPosition()
        query = turn.rotate(query, tokens.position)
        earlier = state["key"].shape[1]
        key = torch.cat((state["key"], turn.rotate(pairs.key, pairs.position)), dim=1)
        value = torch.cat((state["value"], pairs.value), dim=1)
        position = torch.cat((state["position"], pairs.position), dim=1)
        if form == "torch" and plain:
            partial = Partial(self._native(query, key, value, position, tokens, earlier), lse=None)
        else:
            partial = dense(query, key, value, self._visible(position, tokens, earlier))
        if tokens.segment is not None:
            segment = tokens.extended_segment(earlier)
            position = position.masked_fill(segment != tokens.last_segment(), -1)
        state = {"key": key, "value": value, "position": position}
        return partial, state

    def _visible(self, position: Tensor, tokens: Tokens, earlier: int) -> Tensor:
        entry = torch.arange(position.shape[1], device=position.device)
        visible = (position >= 0)[:, None] & (entry <= entry[earlier:, None])
        segment = tokens.extended_segment(earlier)
        return visible if segment is None else visible & (segment[:, earlier:, None] == segment[:, None])

    def _native(self, query: Tensor, key: Tensor, value: Tensor, position: Tensor, tokens: Tokens, earlier: int) -> Tensor:
        # Padding stands behind the real tokens, so the causal mask alone hides it from them.
        causal, dtype = earlier == 0 and tokens.segment is None, query.dtype
        # Pairs of an earlier call may be in another dtype, as where autocast begins; the wider of the two stays.
        query = query.to(key.dtype)
        mask = None
        if not causal:
            entry = torch.arange(position.shape[1], device=position.device)
            # A padding query sees itself: a row without any entry would be NaN.
            mask = (self._visible(position, tokens, earlier) | (entry == entry[earlier:, None]))[:, None]
        states = (states.transpose(1, 2) for states in (query, key, value))
        output = torch.nn.functional.scaled_dot_product_attention(
            *states, attn_mask=mask, is_causal=causal, enable_gqa=query.shape[2] != key.shape[2]
        )
        return output.transpose(1, 2).to(dtype)

    def problem_both_ways(self) -> None:
        return None

    def attend_both_ways(
        self, parameters: Parameters, query: Float[Tensor, "B T H D"], pairs: Pairs, tokens: Tokens, *, form: str
    ) -> Partial:
        """Softmax over the whole document of each token, before and after it."""
        turn = self.position or NoPosition()
        visible = pairs.present[:, None].expand(-1, query.shape[1], -1)
        if tokens.segment is not None:
            visible = visible & (tokens.segment[:, :, None] == tokens.segment[:, None])
        return dense(turn.rotate(query, tokens.position), turn.rotate(pairs.key, pairs.position), pairs.value, visible)
