"""Composed heads over the requests of a step: states are read from pages and written back; plain softmax is the engine's own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import cast

import torch
from torch import Tensor, nn

from blocks.flow import Tokens
from blocks.memories.base import Memory
from blocks.operation import Slot, State
from composer.graph.program import HeadInputs
from composer.model.attention import ComposedAttention
from composer.model.head import Anatomy, Head, anatomy
from composer.model.heads import ComposedHeads, group_slots, groups_of, split_inputs, without_groups
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

    def __call__(self, inputs: HeadInputs) -> Tensor:
        """Return the output ``1 N H D`` for ``1 N`` tokens."""
        query, key = (self.memory.rotation.rotate_tokens(states, inputs.tokens) for states in (inputs.query, inputs.key))
        return self.softmax(*(states[0].flatten(1) for states in (query, key, inputs.value))).view(query.shape)


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

    def join(self, groups: Sequence[Tensor]) -> Tensor:
        """As ``ComposedHeads`` has it."""
        return self.heads.join(groups)

    def empty_state(self, batch: int, dtype: torch.dtype, device: torch.device) -> State:
        """Nothing: each request has its own state."""
        return {}

    def mix(self, hidden: Tensor, tokens: Tokens, state: State, backend: str, in_place: bool) -> tuple[list[Tensor], State]:
        """As ``ComposedHeads`` has it; new states are in the pages."""

        def run(own_tokens: Tokens, inputs: list[Tensor], own_state: State) -> tuple[list[Tensor], State]:
            return self.stateful.mix(inputs[0], own_tokens, own_state, backend, in_place=True)

        mixed = iter(self._over_calls(run, [hidden]))
        return [hidden if name in self.softmax else next(mixed) for name, _ in groups_of(self.heads)], {}

    def forward(self, inputs: HeadInputs, state: State, backend: str, in_place: bool) -> tuple[Tensor, State]:
        """As ``ComposedHeads`` has it, for ``1 N`` tokens; new states are in the pages."""
        groups = dict(zip((name for name, _ in groups_of(self.heads)), split_inputs(self.heads, inputs), strict=True))
        output = {name: plain(groups[name]) for name, plain in self.softmax.items()}
        if stateful := [name for name in groups if name not in output]:
            joined = _join([groups[name] for name in stateful]) if output else inputs
            output |= dict(zip(stateful, self.stateful.split(self._run_stateful(joined, backend)), strict=True))
        return self.join([output[name] for name in groups]), {}

    def _run_stateful(self, inputs: HeadInputs, backend: str) -> Tensor:
        """Return the output of the groups with states."""

        def run(tokens: Tokens, states: list[Tensor], own_state: State) -> tuple[list[Tensor], State]:
            hidden, query, key, value = states
            of_call = replace(inputs, hidden=hidden, query=query, key=key, value=value, tokens=tokens)
            output, new = self.stateful(of_call, own_state, backend, True)
            return [output], new

        return self._over_calls(run, [inputs.hidden, inputs.query, inputs.key, inputs.value])[0]

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


def _join(groups: list[HeadInputs]) -> HeadInputs:
    """Return the inputs of several groups of heads as those of one layer."""
    query, key, value = (torch.cat([getattr(group, name) for group in groups], dim=2) for name in ("query", "key", "value"))
    sinks = [group.sinks for group in groups if group.sinks is not None]
    return replace(groups[0], query=query, key=key, value=value, sinks=torch.cat(sinks) if sinks else None)


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
