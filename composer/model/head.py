"""A group of heads that are composed alike: its graph, compiled once into plain calls.

Each call reads named values, computes one part and writes what it gives. Nothing looks at the graph at run time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

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
from blocks.outputs import Norm
from blocks.part import Fresh, Part, State
from blocks.positions import NoPosition, Rope
from blocks.reads import Read
from composer.graph.graph import HeadGraph, build_graph, feed, is_plain, parts
from composer.graph.lowering import Backend
from composer.spec.document import HeadSpec

Values = dict[Any, Any]
"""What the calls of one head have given so far, by (node, kind of edge)."""


@dataclass
class Run:
    """One forward pass of a head: its values, its tokens, the state it was handed and the one that it hands on."""

    values: Values
    tokens: Tokens
    state: State
    carried: State
    backend: Backend

    def answer(self, source: Any) -> Tensor:
        """What a read, an output norm or a memory of its own has given."""
        given = self.values[source]
        return given if isinstance(given, Tensor) else given.output

    def own(self, node: str) -> State:
        """The state of one part."""
        return {name.removeprefix(f"{node}."): tensor for name, tensor in self.state.items() if name.startswith(f"{node}.")}

    def keep(self, node: str, state: State) -> None:
        """Hand on the state of one part."""
        self.carried.update({f"{node}.{name}": tensor for name, tensor in state.items()})


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
        self._calls: list[tuple[str, Callable[..., None]]] = []
        for node, part, own in parts(graph):
            compiled, method = next(COMPILERS[kind] for kind in type(part).__mro__ if kind in COMPILERS)
            name = graph.nodes[node]["module"]
            if name not in self._modules:
                function = getattr(part, method)
                bound = partial(function, shape=own) if isinstance(part, Gate) else function
                self.add_module(name, PartModule(bound, part.parameters(own)))
            self._calls.append((name, partial(compiled, node, **_wiring(graph, node))))
        (self._output,) = feed(graph, "output", "output") or feed(graph, "output", "partial")

    def forward(
        self, hidden: Tensor, query: Tensor, key: Tensor, value: Tensor, tokens: Tokens, state: State, backend: Backend
    ) -> tuple[Tensor, State]:
        """Run the calls in order. Autocast ends here: sums are kept in float32, whatever the projections compute in."""
        values: Values = {("hidden", "hidden"): hidden, ("query", "query"): query, ("key", "key"): key}
        position = tokens.position if tokens.valid is None else tokens.position.masked_fill(~tokens.valid, -1)
        values["pairs", "pairs"] = Pairs(key, key, value, position)
        run = Run(values, tokens, state, {}, backend)
        with torch.autocast(hidden.device.type, enabled=False):
            for name, call in self._calls:
                call(self._modules[name], run)
        return run.answer(self._output), run.carried

    def empty_state(self, batch: int, dtype: torch.dtype, device: torch.device) -> State:
        """The state before the first token."""
        kinds = {"pairs": dtype, "state": torch.promote_types(dtype, torch.float32), "int64": torch.int64}
        return {
            name: torch.full((batch, *slot.shape), slot.empty, dtype=kinds[slot.dtype], device=device)
            for name, slot in self._slots.items()
        }


def _wiring(graph: HeadGraph, node: str) -> dict[str, Any]:
    """Where a part's inputs come from, by kind; of partials, all; and what the part has to know of its place."""
    part, kinds = graph.nodes[node]["part"], {data["kind"] for _, _, data in graph.in_edges(node, data=True)}
    wiring: dict[str, Any] = {kind: feed(graph, node, kind) for kind in kinds}
    wiring = {kind: sources if kind == "partial" else sources[0] for kind, sources in wiring.items()}
    if isinstance(part, FeatureMap):
        wiring["position"] = graph.nodes[node]["position"] or NoPosition()
        wiring["logarithm"] = part.exponential
    if isinstance(part, Full):
        wiring["plain"] = is_plain(graph, node)
    return wiring


# Each call takes its node and wiring, which are bound when the graph is compiled, then the part's module and the run.
def _convolution(node: str, module: nn.Module, run: Run, *, query: Any, key: Any) -> None:
    convolved_query, convolved_key, state = module(run.values[query], run.values[key], run.tokens, run.own(node))
    run.values[node, "query"] = convolved_query
    # Pairs carry the convolved key down; the raw one stays beside it.
    run.values["pairs", "pairs"] = replace(run.values["pairs", "pairs"], convolved=convolved_key)
    run.keep(node, state)


def _features(
    node: str, module: nn.Module, run: Run, *, query: Any, pairs: Any, position: Rope | NoPosition, logarithm: bool
) -> None:
    held: Pairs = run.values[pairs]
    turned_query = position.rotate(run.values[query], run.tokens.position)
    turned_key = position.rotate(held.convolved, held.position)
    query_features, key_features = module(turned_query, turned_key, logarithm=logarithm)
    run.values[node, "features"] = query_features, Features(key_features, held.value, held.present)


def _gate(node: str, module: nn.Module, run: Run, *, hidden: Any) -> None:
    run.values[node, "decay"] = module(run.values[hidden])


def _exact(node: str, module: nn.Module, run: Run, *, query: Any, pairs: Any, **place: bool) -> None:
    partial_, state, fallen = module(run.values[query], run.values[pairs], run.tokens, run.own(node), form=run.backend, **place)
    run.values[node, "partial"], run.values[node, "pairs"] = partial_, fallen
    run.keep(node, state)


def _state(node: str, module: nn.Module, run: Run, *, features: Any, decay: Any = None) -> None:
    query, pairs = run.values[features]
    log_decay = None if decay is None else run.values[decay]
    run.values[node, "partial"], state = module(query, pairs, log_decay, run.tokens, run.own(node), form=run.backend)
    run.keep(node, state)


def _read(node: str, module: nn.Module, run: Run, *, partial: Any) -> None:
    run.values[node, "output"] = module([run.values[name] for name in partial])


def _finish(node: str, module: nn.Module, run: Run, *, hidden: Any, output: Any = None, partial: Any = None) -> None:
    run.values[node, "output"] = module(run.answer(output or partial[0]), run.values[hidden])


COMPILERS: dict[type[Part], tuple[Callable[..., None], str]] = {
    Convolution: (_convolution, "convolve"),
    FeatureMap: (_features, "map"),
    Gate: (_gate, "log_decay"),
    Window: (_exact, "attend"),
    Full: (_exact, "attend"),
    StateMemory: (_state, "recall"),
    Read: (_read, "combine"),
    Norm: (_finish, "finish"),
}
"""For each kind of part: the call that it becomes, and the function of the part that its module computes."""
