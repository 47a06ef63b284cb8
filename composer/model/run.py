"""One forward pass of a head: what its calls have given so far, and how they reach the parameters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from blocks.flow import Tokens
from blocks.part import State
from composer.graph.lowering import Backend

Source = tuple[str, str]
"""Where a value comes from: (node, kind of edge)."""


@dataclass
class Run:
    """The values so far by their source, the tokens, the state that the head was handed and the one that it hands on, and the
    modules that hold the parts' parameters; both_ways: tokens see what comes after them."""

    values: dict[Any, Any]
    tokens: Tokens
    state: State
    carried: State
    backend: Backend
    modules: Mapping[str, nn.Module | None]
    both_ways: bool

    def compute(self, module: str, function: str, *inputs: Any, **options: Any) -> Any:
        """What a part's function gives."""
        held = self.modules[module]
        assert held is not None
        return held(function, *inputs, **options)

    def answer(self, source: Source) -> Tensor:
        """What a read, an output norm or a memory of its own has given."""
        given = self.values[source]
        return given if isinstance(given, Tensor) else given.output

    def own(self, node: str) -> State:
        """The state of one part."""
        return {name.removeprefix(f"{node}."): tensor for name, tensor in self.state.items() if name.startswith(f"{node}.")}

    def keep(self, node: str, state: State) -> None:
        """Hand on the state of one part."""
        self.carried.update({f"{node}.{name}": tensor for name, tensor in state.items()})
