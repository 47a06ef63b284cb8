"""Learned pairs that every token sees: what a model wants to have at hand, whatever the text."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import PositiveInt

from blocks import initialise
from blocks.flow import Pairs, Partial
from blocks.legend import Float, Shape, Tensor, torch
from blocks.memories.stored_pairs import Holding
from blocks.operation import EVERY, Call, Form, Slot, State
from blocks.part import Fresh, Parameters
from blocks.softmax import dense


class Meta(Holding):
    """Softmax over ``size`` learned pairs per key head, which belong to no token. Every pair of the text is evicted at once.

    Keys are at position 0. With ``position: none`` their weights do not depend on the position of the query. Values start at 0,
    keys do not. The pairs have a share of the softmax from the start, so a head with a window starts as the window scaled down.
    """

    equation: ClassVar[str] = "o_t = Σ_m softmax_m(q_t·k_m / √D) v_m, k_m and v_m learned; lse_t = log Σ_m exp(q_t·k_m / √D)"
    source: ClassVar[str] = (
        "Nguyen et al. 2025, arXiv:2507.09025 (Lizard's meta memory); Dong et al. 2024, arXiv:2411.13676 (Hymba)"
    )
    incidental: ClassVar[frozenset[str]] = Holding.incidental - {"size"}
    answers_from_pairs: ClassVar[bool] = False
    kind: Literal["meta"] = "meta"
    size: PositiveInt = 4
    """Learned pairs."""

    @property
    def declared_size(self) -> int:
        return self.size

    @property
    def brings_values(self) -> tuple[str, ...]:
        return ("value",)

    def parameters(self, shape: Shape) -> dict[str, Fresh]:
        pair = (self.size, shape.key_heads)
        key = Fresh((*pair, shape.head_dim), initialise.fan_in(shape.head_dim))
        return super().parameters(shape) | {"key": key, "value": Fresh((*pair, shape.value_dim), initialise.constant(0.0))}

    def state(self, shape: Shape) -> dict[str, Slot]:
        """Nothing of the text."""
        return {}

    def pairs_held(self, shape: Shape, tokens: int) -> float:
        return 0

    def flops(self, shape: Shape, tokens: int) -> int:
        return 2 * self.size * shape.heads * (shape.head_dim + shape.value_dim)

    def forms(self, shape: Shape) -> tuple[Form, ...]:
        return (Form(EVERY, "all learned pairs", self.compute_output),)

    def compute_output(
        self, parameters: Parameters, call: Call, *, query: Float[Tensor, "B T H D"], pairs: Pairs
    ) -> tuple[tuple[Partial, Pairs], State]:
        """Compute the outputs, and evict every pair."""
        batch, length = query.shape[:2]
        key, value = (parameters[name].to(query.dtype).expand(batch, -1, -1, -1) for name in ("key", "value"))
        visible = torch.ones(batch, length, self.size, dtype=torch.bool, device=query.device)
        return (dense(query, key, value, visible, call.shape.softcap), pairs), {}
