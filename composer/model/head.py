"""A group of heads that are composed alike: its graph, compiled once into plain calls.

Each call reads named values, computes one part and writes what it gives. Nothing looks at the graph at run time.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from blocks.flow import Pairs, Tokens, accumulating
from blocks.legend import Shape
from blocks.mixers.base import Mixer
from blocks.part import Fresh, Part, State
from composer.graph.graph import asked, build_graph, feed, parts, slots
from composer.graph.lowering import Backend
from composer.model.calls import COMPILERS
from composer.model.run import Run
from composer.model.wiring import wiring
from composer.spec.document import HeadSpec


class PartModule(nn.Module):
    """Holds one part's parameters; calling it calls one of the part's functions with them."""

    def __init__(self, part: Part, fresh: dict[str, Fresh]) -> None:
        super().__init__()
        self.part = part
        self.fresh = fresh
        narrow = torch.get_default_dtype()
        for name, parameter in fresh.items():
            kind = accumulating(narrow) if parameter.precise else narrow
            self.register_parameter(name, nn.Parameter(torch.empty(parameter.shape, dtype=kind)))

    @torch.no_grad()
    def fill(self, generator: torch.Generator | None) -> None:
        """Start every parameter as its part says."""
        for name, fresh in self.fresh.items():
            fresh.fill(self.get_parameter(name), generator)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> PartModule:
        """As nn.Module has it, for every way to move or to cast a model; what is precise is never made narrower than float32."""
        precise = [parameter for name, parameter in self._parameters.items() if parameter is not None and self.fresh[name].precise]
        precise += [parameter.grad for parameter in precise if parameter.grad is not None]

        def applied(tensor: Tensor) -> Tensor:
            answer = fn(tensor)
            wide = accumulating(answer.dtype)
            if wide == answer.dtype or not any(tensor is one for one in precise):
                return answer
            # From the values before the cast, not from the rounded ones.
            return tensor.to(answer.device, wide)

        return super()._apply(applied, recurse)

    def forward(self, function: str, *inputs: Any, **options: Any) -> Any:
        """The part's own answer."""
        return getattr(self.part, function)(self._parameters, *inputs, **options)


def precise_parameters(model: nn.Module) -> set[str]:
    """The full names of those that are never narrower than float32."""
    return {
        f"{place}.{name}"
        for place, module in model.named_modules()
        if isinstance(module, PartModule)
        for name, fresh in module.fresh.items()
        if fresh.precise
    }


class Head(nn.Module):
    """One group of H query heads on K key heads.

    forward(hidden B T C, query B T H D, key B T K D, value B T K D, tokens, state) gives the output B T H D and the new state.
    place: the layer, and the first of these heads in it; random choices count by them.
    """

    def __init__(self, head: HeadSpec, shape: Shape, place: tuple[int, int] = (0, 0)) -> None:
        super().__init__()
        graph = build_graph(head, shape)
        self._slots, self._both_ways = slots(graph), shape.both_ways
        driven = {node for pair in asked(graph).values() for node in pair}
        self._calls: list[Callable[[Run], None]] = []
        self._before: list[Callable[[Run], None]] = []
        for node, part, own in parts(graph):
            name = graph.nodes[node]["module"]
            if name not in self._modules:
                self.add_module(name, PartModule(part, part.parameters(own)))
            if node not in driven:
                compiled = next(COMPILERS[kind] for kind in type(part).__mro__ if kind in COMPILERS)
                calls = self._before if isinstance(part, Mixer) and part.feeds == "qk" else self._calls
                calls.append(partial(compiled, node, name, **wiring(graph, node, place)))
        (self._output,) = feed(graph, "output", "output") or feed(graph, "output", "partial")

    def mix(self, hidden: Tensor, tokens: Tokens, state: State, backend: Backend) -> tuple[Tensor, State]:
        """What the projections of queries and keys look at: hidden, or what a mixer makes of it, with the mixer's new state."""
        run = Run({("hidden", "hidden"): hidden}, tokens, state, {}, backend, self._modules, self._both_ways)
        with torch.autocast(hidden.device.type, enabled=False):
            for call in self._before:
                call(run)
        return run.values.get(("mix_input", "hidden"), hidden), run.carried

    def forward(
        self, hidden: Tensor, query: Tensor, key: Tensor, value: Tensor, tokens: Tokens, state: State, backend: Backend
    ) -> tuple[Tensor, State]:
        """Run the calls in order. Autocast ends here: sums are kept in float32, whatever the projections compute in."""
        position = tokens.position if tokens.valid is None else tokens.position.masked_fill(~tokens.valid, -1)
        values: dict[Any, Any] = {("hidden", "hidden"): hidden, ("query", "query"): query, ("key", "key"): key}
        values["value", "value"] = value
        values["pairs", "pairs"] = Pairs(key, key, value, position)
        run = Run(values, tokens, state, {}, backend, self._modules, self._both_ways)
        with torch.autocast(hidden.device.type, enabled=False):
            for call in self._calls:
                call(run)
        # Raw numerators, and what is made of them, stay in the accumulating dtype up to here.
        return run.answer(self._output).to(value.dtype), run.carried

    def empty_state(self, batch: int, dtype: torch.dtype, device: torch.device) -> State:
        """The state before the first token."""
        kinds = {"pairs": dtype, "state": torch.promote_types(dtype, torch.float32), "int64": torch.int64}
        return {
            name: torch.full((batch, *slot.shape), slot.empty, dtype=kinds[slot.dtype], device=device)
            for name, slot in self._slots.items()
        }
