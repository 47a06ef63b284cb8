"""A group of heads that are composed alike: its graph, compiled once into plain calls.

Each call reads named values, computes one part and writes what it gives. Nothing looks at the graph at run time.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Literal, cast

import networkx
import torch
from torch import Tensor, nn

from blocks.convolution import Convolution
from blocks.feature_maps.base import FeatureMap
from blocks.flow import Features, Pairs, Tokens
from blocks.gates.base import Gate
from blocks.legend import Shape
from blocks.memories.full import Full
from blocks.memories.state import StateMemory
from blocks.memories.window import Window
from blocks.part import Fresh, Part, State
from blocks.positions import NoPosition
from blocks.reads import Read
from composer.graph.graph import HeadGraph, build_graph, feed, is_plain, parts
from composer.spec.document import HeadSpec

Backend = Literal["reference", "torch"]
Values = dict[Any, Any]
Call = Callable[[Values, Tokens, State, Backend], None]


class PartModule(nn.Module):
    """Holds one part's parameters; calling it calls the part's function with them."""

    def __init__(self, function: Callable[..., Any], fresh: dict[str, Fresh]) -> None:
        super().__init__()
        self.function = function
        self.fresh = fresh
        for name, parameter in fresh.items():
            self.register_parameter(name, nn.Parameter(torch.empty(parameter.shape)))

    @torch.no_grad()
    def fill(self, generator: torch.Generator | None) -> None:
        """Start every parameter as its part says."""
        for name, fresh in self.fresh.items():
            fresh.fill(self.get_parameter(name), generator)

    def forward(self, *inputs: Any, **options: Any) -> Any:
        """The part's own answer."""
        return self.function(self._parameters, *inputs, **options)


class Head(nn.Module):
    """One group of H query heads on K key heads.

    forward(hidden B T C, query B T H D, key B T K D, value B T K D, tokens, state) gives the output B T H D and the new state.
    """

    def __init__(self, head: HeadSpec, shape: Shape) -> None:
        super().__init__()
        graph = build_graph(head, shape)
        self._slots = {f"{node}.{name}": slot for node, part, own in parts(graph) for name, slot in part.state(own).items()}
        self._calls: list[Call] = []
        for node in networkx.topological_sort(graph):
            part = graph.nodes[node]["part"]
            if part is None:
                if node == "pairs":
                    self._calls.append(partial(_enter, cast("tuple[Any, Any, Any]", _pair_inputs(graph))))
                continue
            module = self._module(graph, node, part)
            compiler = next(COMPILERS[kind] for kind in type(part).__mro__ if kind in COMPILERS)
            self._calls.append(compiler(graph, node, module))
        (self._output,) = feed(graph, "output", "output") or feed(graph, "output", "partial")

    def _module(self, graph: HeadGraph, node: str, part: Part) -> PartModule:
        name, shape = graph.nodes[node]["module"], graph.nodes[node]["shape"]
        if name not in self._modules:
            method = next(METHODS[kind] for kind in type(part).__mro__ if kind in METHODS)
            function = partial(_log_decay, part, shape) if isinstance(part, Gate) else method(part)
            module = PartModule(function, part.parameters(shape))
            if not module.fresh:
                return module
            self.add_module(name, module)
        return cast("PartModule", self._modules[name])

    def forward(
        self, hidden: Tensor, query: Tensor, key: Tensor, value: Tensor, tokens: Tokens, state: State, backend: Backend
    ) -> tuple[Tensor, State]:
        """Run the calls in order."""
        values: Values = {(name, name): tensor for name, tensor in zip(INPUTS, (hidden, query, key, value), strict=True)}
        carried: State = {}
        values["state"] = state
        for call in self._calls:
            call(values, tokens, carried, backend)
        output = values[self._output]
        return (output if isinstance(output, Tensor) else output.output), carried

    def empty_state(self, batch: int, dtype: torch.dtype, device: torch.device) -> State:
        """The state before the first token."""
        kinds = {"pairs": dtype, "state": torch.promote_types(dtype, torch.float32), "int64": torch.int64}
        return {
            name: torch.full((batch, *slot.shape), slot.empty, dtype=kinds[slot.dtype], device=device)
            for name, slot in self._slots.items()
        }


INPUTS = ("hidden", "query", "key", "value")
METHODS: dict[type[Part], Callable[[Any], Callable[..., Any]]] = {
    Convolution: lambda part: part.convolve,
    FeatureMap: lambda part: part.map,
    Window: lambda part: part.attend,
    Full: lambda part: part.attend,
    StateMemory: lambda part: part.recall,
    Gate: lambda part: part.log_decay,
    Read: lambda part: lambda _parameters, partials: part.combine(partials),
}


def _log_decay(gate: Gate, shape: Shape, parameters: Any, hidden: Tensor) -> Tensor | None:
    return gate.log_decay(parameters, hidden, shape)


def _own(state: State, node: str) -> State:
    return {name.removeprefix(f"{node}."): tensor for name, tensor in state.items() if name.startswith(f"{node}.")}


def _keep(carried: State, node: str, state: State) -> None:
    carried.update({f"{node}.{name}": tensor for name, tensor in state.items()})


def _pair_inputs(graph: HeadGraph) -> tuple[Any, Any, Any]:
    keys = feed(graph, "pairs", "key")
    return keys[0], keys[-1], feed(graph, "pairs", "value")[0]


def _enter(inputs: tuple[Any, Any, Any], values: Values, tokens: Tokens, _carried: State, _backend: Backend) -> None:
    """Make this call's pairs."""
    key, convolved, value = (values[name] for name in inputs)
    position = tokens.position if tokens.valid is None else tokens.position.masked_fill(~tokens.valid, -1)
    values["pairs", "pairs"] = Pairs(key, convolved, value, position)


def _convolution(graph: HeadGraph, node: str, module: PartModule) -> Call:
    (query,), (key,) = feed(graph, node, "query"), feed(graph, node, "key")

    def call(values: Values, tokens: Tokens, carried: State, backend: Backend) -> None:
        state = _own(values["state"], node)
        values[node, "query"], values[node, "key"], state = module(values[query], values[key], tokens, state)
        _keep(carried, node, state)

    return call


def _features(graph: HeadGraph, node: str, module: PartModule) -> Call:
    (query,), (pairs,) = feed(graph, node, "query"), feed(graph, node, "pairs")
    position = graph.nodes[node]["position"] or NoPosition()
    logarithm = graph.nodes[node]["part"].exponential

    def call(values: Values, tokens: Tokens, carried: State, backend: Backend) -> None:
        held: Pairs = values[pairs]
        turned_query = position.rotate(values[query], tokens.position)
        turned_key = position.rotate(held.convolved, held.position)
        query_features, key_features = module(turned_query, turned_key, logarithm=logarithm)
        values[node, "features"] = query_features, Features(key_features, held.value, held.present)

    return call


def _gate(graph: HeadGraph, node: str, module: PartModule) -> Call:
    (hidden,) = feed(graph, node, "hidden")

    def call(values: Values, tokens: Tokens, carried: State, backend: Backend) -> None:
        values[node, "decay"] = module(values[hidden])

    return call


def _exact(graph: HeadGraph, node: str, module: PartModule) -> Call:
    (query,), (pairs,) = feed(graph, node, "query"), feed(graph, node, "pairs")
    options = {"plain": is_plain(graph, node)} if isinstance(graph.nodes[node]["part"], Full) else {}

    def call(values: Values, tokens: Tokens, carried: State, backend: Backend) -> None:
        state = _own(values["state"], node)
        partial_, state, fallen = module(values[query], values[pairs], tokens, state, form=backend, **options)
        values[node, "partial"], values[node, "pairs"] = partial_, fallen
        _keep(carried, node, state)

    return call


def _state(graph: HeadGraph, node: str, module: PartModule) -> Call:
    (features,), decay = feed(graph, node, "features"), next(iter(feed(graph, node, "decay")), None)

    def call(values: Values, tokens: Tokens, carried: State, backend: Backend) -> None:
        query, pairs = values[features]
        log_decay = None if decay is None else values[decay]
        state = _own(values["state"], node)
        values[node, "partial"], state = module(query, pairs, log_decay, tokens, state, form=backend)
        _keep(carried, node, state)

    return call


def _read(graph: HeadGraph, node: str, module: PartModule) -> Call:
    partials = feed(graph, node, "partial")

    def call(values: Values, tokens: Tokens, carried: State, backend: Backend) -> None:
        values[node, "output"] = module([values[name] for name in partials])

    return call


COMPILERS: dict[type[Part], Callable[[HeadGraph, str, PartModule], Call]] = {
    Convolution: _convolution,
    FeatureMap: _features,
    Gate: _gate,
    Window: _exact,
    Full: _exact,
    StateMemory: _state,
    Read: _read,
}
