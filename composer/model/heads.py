"""The composed heads of one layer, each group by its head's name."""

from __future__ import annotations

import copy
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import Tensor, nn

from blocks.flow import Tokens
from blocks.operation import Slot, State
from blocks.positions import Rotary
from composer.graph.composition import HeadSpec
from composer.graph.program import HeadInputs
from composer.model.head import Head, anatomy
from composer.spec.layer_rules import Group, key_heads_of, runs_of
from composer.spec.resolve import Resolved


@dataclass(frozen=True)
class AttentionFacts:
    """The facts about a host's attention that heads in its place must follow. scale: of the logits. window: tokens that a query
    sees, its own among them; None: all. softcap: c of c·tanh(logit / c). rotates: whether it rotates queries and keys. sinks:
    whether it has any."""

    heads: int
    key_heads: int
    head_dim: int
    value_dim: int
    scale: float
    window: int | None
    softcap: float | None
    rotates: bool
    sinks: bool


def with_rotation(head: HeadSpec, rotary: Rotary | None) -> HeadSpec:
    """Return the head for a layer with this rotation of queries and keys: the positions of its memories are the host's."""
    memories = ((memory, memory.rotation.within(rotary)) for memory in head.memory)
    if all(position is memory.rotation for memory, position in memories):
        return head
    rotated = (memory.model_copy(update={"position": memory.rotation.within(rotary)}) for memory in head.memory)
    return head.model_copy(update={"memory": tuple(rotated)})


class ComposedHeads(nn.Module):
    """The groups of one layer, each a head by its name. All fresh parameters of the layer are in this module."""

    def __init__(self, resolved: Resolved, layer: int, facts: AttentionFacts, rotary: Rotary | None) -> None:
        """facts: of the attention that the heads replace. rotary: how that attention rotates queries and keys, if it does."""
        super().__init__()
        self._groups, first = resolved.layers[layer], 0
        self._names: dict[str, dict[str, str]] = {}
        """For each head, the names of its state's tensors in the layer's state."""
        per_key = facts.heads // facts.key_heads
        for group, numbers in zip(self._groups, key_heads_of(self._groups), strict=True):
            shape = replace(resolved.shape(group.heads), window=facts.window, softcap=facts.softcap, sinks=facts.sinks)
            queries = [per_key * number + index for number in numbers for index in range(per_key)]
            head = Head(with_rotation(resolved.heads[group.head], rotary), shape, (layer, first), queries)
            self.add_module(group.head, head)
            self._names[group.head] = {part: f"{group.head}.{part}" for part in head._slots}
            first += group.heads
        self._runs = runs_of(self._groups)
        self._key_heads = sum(group.key_heads for group in self._groups)
        self._mixes = any(head._mixes for head in self._heads())
        """Whether a head mixes the hidden states before queries and keys are projected from them."""

    def mix(self, hidden: Tensor, tokens: Tokens, state: State, backend: str, in_place: bool) -> tuple[list[Tensor], State]:
        """For each group, the hidden states that its queries and keys are projected from, mixed or as they are; and new states."""
        inputs, carried = [], {}
        for name, head in zip(self._names, self._heads(), strict=True):
            mixed, new = head.mix(hidden, tokens, self._own_state(name, state), backend, in_place)
            inputs.append(mixed)
            carried |= self._rename_state(name, new)
        return inputs, carried

    def forward(self, inputs: HeadInputs, state: State, backend: str, in_place: bool) -> tuple[Tensor, State]:
        """Return the outputs of all heads, ``B T H V``, and the layer's new state. inputs: those of all heads."""
        if len(self._names) == 1:
            (name,) = self._names
            module: Any = self._modules[name]
            output, new = module(inputs, self._own_state(name, state), backend, in_place)
            return output, self._rename_state(name, new)
        outputs, carried = [], {}
        for name, head, head_inputs in zip(self._names, self._heads(), split_inputs(self, inputs), strict=True):
            output, new = head(head_inputs, self._own_state(name, state), backend, in_place)
            outputs.append(output)
            carried |= self._rename_state(name, new)
        return self.join(outputs), carried

    def empty_state(self, batch: int, dtype: torch.dtype, device: torch.device) -> State:
        """Return the layer's state before the first token."""
        carried: State = {}
        for name, head in zip(self._names, self._heads(), strict=True):
            carried |= self._rename_state(name, head.empty_state(batch, dtype, device))
        return carried

    def split(self, states: Tensor, dim: int = 2) -> tuple[Tensor, ...]:
        """``B T (all heads) D`` to the heads of each group; queries have more heads than keys by the same factor everywhere."""
        if len(self._groups) == 1:
            return (states,)
        # Slices need no tensor of indices, which would have to be moved to devices and kept out of CUDA graphs.
        runs, factor = self._runs, states.shape[dim] // self._key_heads
        slices = states.split([length * factor for _, length in runs], dim=dim)
        parts: list[list[Tensor]] = [[] for _ in self._groups]
        for (group, _), part in zip(runs, slices, strict=True):
            parts[group].append(part)
        return tuple(part[0] if len(part) == 1 else torch.cat(part, dim=dim) for part in parts)

    def join(self, groups: Sequence[Tensor], dim: int = 2) -> Tensor:
        """The inverse of ``split``."""
        if len(groups) == 1:
            return groups[0]
        factor = sum(part.shape[dim] for part in groups) // self._key_heads
        slices = [
            iter(part.split([length * factor for group, length in self._runs if group == index], dim=dim))
            for index, part in enumerate(groups)
        ]
        return torch.cat([next(slices[group]) for group, _ in self._runs], dim=dim)

    def _heads(self) -> list[Head]:
        return [cast("Head", self._modules[name]) for name in self._names]

    def _own_state(self, name: str, state: State) -> State:
        """Return a head's part of the layer's state."""
        try:
            return {part: state[full] for part, full in self._names[name].items()}
        except KeyError as error:
            raise ValueError(f"the cache is of another model: it has no {error} in a layer that keeps one") from error

    def _rename_state(self, name: str, head_state: State) -> State:
        """Return a head's state, by its names in the layer's state."""
        names = self._names[name]
        return {names[part]: tensor for part, tensor in head_state.items()}


def groups_of(heads: ComposedHeads) -> Iterator[tuple[str, Head]]:
    """Return each group's name and its heads, in the order of the layer. It is not a method, because a head may
    have its name."""
    return zip(heads._names, heads._heads(), strict=True)


def split_inputs(heads: ComposedHeads, inputs: HeadInputs) -> Iterator[HeadInputs]:
    """Yield the inputs of each group."""
    queries, keys, values = (heads.split(states) for states in (inputs.query, inputs.key, inputs.value))
    sinks = [None] * len(queries) if inputs.sinks is None else heads.split(inputs.sinks, dim=0)
    for query, key, value, group_sinks in zip(queries, keys, values, sinks, strict=True):
        yield replace(inputs, query=query, key=key, value=value, sinks=group_sinks)


def without_groups(heads: ComposedHeads, groups: Container[str]) -> ComposedHeads:
    """Return a copy without these groups, in which the heads of the other groups follow each other. The modules are shared."""
    groups_left = [group.model_copy(update={"numbers": None}) for group in heads._groups if group.head not in groups]
    return regroup(heads, groups_left, {group.head: cast("Head", heads._modules[group.head]) for group in groups_left})


def regroup(heads: ComposedHeads, groups: Sequence[Group], modules: Mapping[str, Head]) -> ComposedHeads:
    """Return a copy of a layer's heads with some of its groups, perhaps with other numbers of heads. modules: by head."""
    copied = copy.copy(heads)
    copied._groups = tuple(groups)
    copied._runs, copied._key_heads = runs_of(copied._groups), sum(group.key_heads for group in groups)
    copied._names = {group.head: heads._names[group.head] for group in groups}
    copied._modules = dict(modules)
    return copied


def group_slots(heads: ComposedHeads, group: str) -> dict[str, Slot]:
    """Return the tensors that a group hands from call to call, for one batch row, by their names in the layer's state."""
    graph = anatomy(cast("Head", heads._modules[group])).graph
    return {heads._names[group][part]: slot for part, slot in graph.slots.items()}
