"""The attention of one layer: the trunk's four projections around groups of composed heads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn

from blocks.flow import Tokens
from blocks.part import State
from composer.model.head import Head
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


class ComposedHeads(nn.Module):
    """The groups of one layer, each a head by its name. All fresh parameters of the layer stand in here."""

    def __init__(self, resolved: Resolved, layer: int) -> None:
        super().__init__()
        self._groups, first = resolved.layers[layer], 0
        for group in self._groups:
            self.add_module(group.head, Head(resolved.heads[group.head], resolved.shape(group.heads), (layer, first)))
            first += group.heads

    def mix(self, hidden: Tensor, tokens: Tokens, state: State, backend: str, in_place: bool) -> tuple[list[Tensor], State]:
        """What the projections of each group's queries and keys look at, hidden itself where nothing mixes it, and new states."""
        inputs, carried = [], {}
        for name, head, own in self._heads(state):
            mixed, new = head.mix(hidden, tokens, own, backend, in_place)
            inputs.append(mixed)
            carried |= {f"{name}.{part}": tensor for part, tensor in new.items()}
        return inputs, carried

    def forward(
        self,
        hidden: Tensor,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        tokens: Tokens,
        state: State,
        backend: str,
        in_place: bool,
    ) -> tuple[Tensor, State]:
        """query ``B T (all heads) D``, key and value likewise, to the heads' outputs and the layer's new state."""
        queries, keys, values = (self.split(states) for states in (query, key, value))
        outputs, carried = [], {}
        for index, (name, head, own) in enumerate(self._heads(state)):
            output, new = head(hidden, queries[index], keys[index], values[index], tokens, own, backend, in_place)
            outputs.append(output)
            carried |= {f"{name}.{part}": tensor for part, tensor in new.items()}
        return (outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=2)), carried

    def empty_state(self, batch: int, dtype: torch.dtype, device: torch.device) -> State:
        """The layer's state before the first token."""
        heads = ((group.head, cast("Head", self._modules[group.head])) for group in self._groups)
        return {f"{name}.{part}": tensor for name, head in heads for part, tensor in head.empty_state(batch, dtype, device).items()}

    def split(self, states: Tensor) -> tuple[Tensor, ...]:
        """``B T (all heads) D`` to the heads of each group; queries have more heads than keys by the same factor everywhere."""
        if len(self._groups) == 1:
            return (states,)
        factor = states.shape[2] // sum(group.key_heads for group in self._groups)
        return states.split([group.key_heads * factor for group in self._groups], dim=2)

    def _heads(self, state: State) -> Any:
        for group in self._groups:
            head = cast("Head", self._modules[group.head])
            own = {name.partition(".")[2]: held for name, held in state.items() if name.startswith(f"{group.head}.")}
            yield group.head, head, own
