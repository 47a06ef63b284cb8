"""Composed heads over the requests of a step: states are read from pages and written back; plain softmax is the engine's own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn

from blocks.flow import Tokens
from blocks.memories.base import Memory
from blocks.operation import Slot, State
from composer.model.attention import ComposedAttention
from composer.model.head import Anatomy, Head, anatomy
from composer.model.heads import ComposedHeads, group_slots, groups_of, without_groups
from composer.model.hosts import attentions
from composer.model.modeling import ComposedForCausalLM
from composer.vllm.pages import Pages
from composer.vllm.step import EngineStep

Softmax = Callable[[Tensor, Tensor, Tensor], Tensor]
"""An engine's attention over its own cache: query ``N H·D``, key and value ``N K·D`` of a step's tokens to ``N H·D``."""


@dataclass
class CurrentStep:
    """The step that the model is at, for all of its layers."""

    step: EngineStep | None = None


class PlainSoftmax:
    """A group of heads that is softmax attention and nothing else: the engine computes it over its own cache."""

    def __init__(self, memory: Memory, softmax: Softmax) -> None:
        self.memory, self.softmax = memory, softmax

    def __call__(self, tokens: Tokens, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """query ``1 N H D``, key and value ``1 N K D``, before rotation, to ``1 N H D``."""
        query, key = (self.memory.rotation.rotate_tokens(states, tokens) for states in (query, key))
        return self.softmax(*(states[0].flatten(1) for states in (query, key, value))).view(query.shape)


def softmax_groups(heads: ComposedHeads) -> Iterator[tuple[str, Head, Memory]]:
    """Yield the groups of a layer that are plain softmax, with their memories."""
    for name, head in groups_of(heads):
        memory = anatomy(head).graph.softmax
        if memory is not None:
            yield name, head, memory


def slots_of(heads: ComposedHeads) -> dict[str, Slot]:
    """Return the tensors that a layer keeps for each request in its page."""
    plain = {name for name, _, _ in softmax_groups(heads)}
    return {full: slot for name, _ in groups_of(heads) if name not in plain for full, slot in group_slots(heads, name).items()}


class ServedHeads(nn.Module):
    """Replaces a layer's ``ComposedHeads``. A call of it has one row: the tokens of a step."""

    def __init__(self, name: str, heads: ComposedHeads, softmax: Mapping[str, PlainSoftmax], current: CurrentStep) -> None:
        """name: of the layer, as the step's pages have it. softmax: the groups that the engine computes."""
        super().__init__()
        self.name, self.heads, self.softmax, self.current = name, heads, softmax, current
        self.stateful = without_groups(heads, softmax) if softmax else heads
        """The groups with states."""
        self._mixes = heads._mixes
        self.pages: Pages | None = None
        """The engine's memory of the layer's states; None before it has any."""

    def split(self, states: Tensor) -> tuple[Tensor, ...]:
        """As ``ComposedHeads`` has it."""
        return self.heads.split(states)

    def empty_state(self, batch: int, dtype: torch.dtype, device: torch.device) -> State:
        """Nothing: each request has its own state."""
        return {}

    def mix(self, hidden: Tensor, tokens: Tokens, state: State, backend: str, in_place: bool) -> tuple[list[Tensor], State]:
        """As ``ComposedHeads`` has it; new states are in the pages."""

        def run(own_tokens: Tokens, inputs: list[Tensor], own: State) -> tuple[list[Tensor], State]:
            return self.stateful.mix(inputs[0], own_tokens, own, backend, in_place=True)

        mixed = iter(self._over_calls(run, [hidden]))
        return [hidden if name in self.softmax else next(mixed) for name, _ in groups_of(self.heads)], {}

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
        sinks: Tensor | None = None,
        *,
        entering: bool = False,
    ) -> tuple[Tensor, State]:
        """As ``ComposedHeads`` has it, for ``1 N`` tokens; new states are in the pages."""

        def run(own_tokens: Tokens, inputs: list[Tensor], own: State) -> tuple[list[Tensor], State]:
            mine, *projected = inputs
            query, key, value = projected
            output, new = self.stateful(mine, query, key, value, own_tokens, own, backend, True, own_sinks, entering=entering)
            return [output], new

        own_sinks = sinks
        if not self.softmax:
            return self._over_calls(run, [hidden, query, key, value])[0], {}
        names = [name for name, _ in groups_of(self.heads)]
        groups = dict(zip(names, zip(*map(self.split, (query, key, value)), strict=True), strict=True))
        output = {name: plain(tokens, *groups[name]) for name, plain in self.softmax.items()}
        if rest := [name for name in names if name not in output]:
            projected = [torch.cat(states, dim=2) for states in zip(*(groups[name] for name in rest), strict=True)]
            if sinks is not None:
                each = dict(zip(names, sinks.split([groups[name][0].shape[2] for name in names]), strict=True))
                own_sinks = torch.cat([each[name] for name in rest])
            (answer,) = self._over_calls(run, [hidden, *projected])
            output |= dict(zip(rest, self.stateful.split(answer), strict=True))
        return torch.cat([output[name] for name in names], dim=2), {}

    def _over_calls(
        self, run: Callable[[Tokens, list[Tensor], State], tuple[list[Tensor], State]], inputs: list[Tensor]
    ) -> list[Tensor]:
        """Return the outputs, ``1 N …``. run: a function of a call's tokens, inputs ``B T …`` and state, which returns outputs ``B
        T …`` and a new state."""
        step = self.current.step
        assert step is not None, "the model has set it"
        pages, memory, lines = step.pages.get(self.name), self.pages, []
        for call in step.calls:
            if call.all_new or pages is None or memory is None:
                state = self.stateful.empty_state(len(call.rows), inputs[-1].dtype, inputs[-1].device)
            else:
                state = memory.read(call, pages)
            outputs, new = run(call.tokens, [call.take(line) for line in inputs], state)
            if pages is not None and memory is not None:
                memory.write(call, pages, new)
            lines = lines or [states.new_zeros(1, inputs[0].shape[1], *states.shape[2:]) for states in outputs]
            for line, states in zip(lines, outputs, strict=True):
                call.put(states, line)
        return lines


def serve_heads(
    model: ComposedForCausalLM, softmax_for: Callable[[ComposedAttention, str, Anatomy], Softmax], current: CurrentStep
) -> list[ServedHeads]:
    """Put ``ServedHeads`` into every layer of a model. Return them in the order of the layers, each with the name of its attention.

    softmax_for: the engine's attention for a group of heads that is plain softmax, by its layer's attention and its name.
    """
    layers = []
    for name, attention in attentions(model):
        softmax = {
            group: PlainSoftmax(memory, softmax_for(attention, group, anatomy(head)))
            for group, head, memory in softmax_groups(attention.composed)
        }
        layers.append(ServedHeads(name, attention.composed, softmax, current))
        attention.composed = cast("ComposedHeads", layers[-1])
    return layers
