"""The attention of one layer: the trunk's four projections around groups of composed heads."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from blocks.flow import Tokens
from blocks.part import State
from composer.model.heads import ComposedHeads
from composer.spec.resolve import Resolved

if TYPE_CHECKING:
    from composer.model.configuration import ComposedConfig


class ComposedAttention(nn.Module):
    """Llama's four projections around groups of composed heads."""

    def __init__(self, config: ComposedConfig, resolved: Resolved, layer: int) -> None:
        super().__init__()
        size, bias = resolved.dimensions, config.attention_bias
        self.head_dim = size.head_dim
        self.q_proj = nn.Linear(size.hidden_size, size.heads * size.head_dim, bias=bias)
        self.k_proj = nn.Linear(size.hidden_size, size.key_heads * size.head_dim, bias=bias)
        self.v_proj = nn.Linear(size.hidden_size, size.key_heads * size.head_dim, bias=bias)
        self.o_proj = nn.Linear(size.heads * size.head_dim, size.hidden_size, bias=bias)
        self.composed = ComposedHeads(resolved, layer)

    def forward(self, hidden: Tensor, tokens: Tokens, state: State, backend: str, in_place: bool = False) -> tuple[Tensor, State]:
        """hidden ``B T C``, and the layer's state (empty at the start), to the attention's output and the new state.

        in_place: nobody else holds the state, so it may be written over.
        """
        heads, state = self.heads(hidden, tokens, state, backend, in_place=in_place)
        return self.o_proj(heads.flatten(2)), state

    def heads(
        self,
        hidden: Tensor,
        tokens: Tokens,
        state: State,
        backend: str,
        values: Tensor | None = None,
        *,
        in_place: bool = False,
    ) -> tuple[Tensor, State]:
        """What each head answers, ``B T H D``, before the output projection. values: ``B T K D``, in place of the layer's own."""
        value = self.v_proj(hidden).unflatten(2, (-1, self.head_dim)) if values is None else values
        state = state or self.composed.empty_state(hidden.shape[0], value.dtype, hidden.device)
        inputs, mixed = self.composed.mix(hidden, tokens, state, backend, in_place)
        query, key = (self._projected(projection, inputs) for projection in (self.q_proj, self.k_proj))
        output, carried = self.composed(hidden, query, key, value, tokens, state, backend, in_place)
        return output, carried | mixed

    def _projected(self, projection: nn.Module, inputs: list[Tensor]) -> Tensor:
        """Queries or keys ``B T (all heads) D``, those of each group from what the group's projections look at."""
        if all(one is inputs[0] for one in inputs):
            return projection(inputs[0]).unflatten(2, (-1, self.head_dim))
        whole = [projection(one).unflatten(2, (-1, self.head_dim)) for one in inputs]
        return torch.cat([self.composed.split(states)[index] for index, states in enumerate(whole)], dim=2)
