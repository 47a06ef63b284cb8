"""The composed heads of one layer, each group by its head's name."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import Tensor, nn

from blocks.flow import Tokens
from blocks.part import State
from blocks.rotation import Turning
from composer.graph.composition import HeadSpec
from composer.model.head import Head
from composer.spec.resolve import Resolved


@dataclass(frozen=True)
class Asked:
    """What a host's layer asks of its heads. scale: of the logits. window: tokens that a query sees, its own among them; None: all.
    softcap: c of c·tanh(logit / c). turns: whether it turns queries and keys. sinks: whether its softmax has some."""

    heads: int
    key_heads: int
    head_dim: int
    value_dim: int
    scale: float
    window: int | None
    softcap: float | None
    turns: bool
    sinks: bool


def turned_by(head: HeadSpec, turning: Turning | None) -> HeadSpec:
    """The head in a layer that turns so."""
    memories = ((memory, memory.turn.within(turning)) for memory in head.memory)
    if all(position is memory.turn for memory, position in memories):
        return head
    turned = (memory.model_copy(update={"position": memory.turn.within(turning)}) for memory in head.memory)
    return head.model_copy(update={"memory": tuple(turned)})


class ComposedHeads(nn.Module):
    """The groups of one layer, each a head by its name. All fresh parameters of the layer stand in here."""

    def __init__(self, resolved: Resolved, layer: int, asked: Asked, turning: Turning | None) -> None:
        """asked, turning: what the host's layer asks of its heads, and how it turns queries and keys, if it does."""
        super().__init__()
        self.key_heads, self.head_dim = asked.key_heads, asked.head_dim
        self._groups, first = resolved.layers[layer], 0
        for group in self._groups:
            shape = replace(resolved.shape(group.heads), window=asked.window, softcap=asked.softcap)
            self.add_module(group.head, Head(turned_by(resolved.heads[group.head], turning), shape, (layer, first)))
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
