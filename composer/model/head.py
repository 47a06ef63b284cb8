"""A group of heads that are composed alike: modules that hold its parts' parameters, and the program that runs them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from blocks.flow import Tokens
from blocks.legend import Shape
from blocks.operation import Call, Setting, State
from blocks.part import Fresh, Part
from blocks.tensors import accumulating, as_bool, may_read_numbers, slot_dtypes
from composer.graph.composition import HeadSpec
from composer.graph.graph import HeadGraph
from composer.graph.lowering import AUTO, Compiled, compile_head
from composer.graph.pieces import SHORTEST, piece_length, run_in_pieces, takes_pieces
from composer.graph.program import HeadFunctions, HeadInputs
from composer.graph.source import heading
from converters.trunk import dtype_name


class PartModule(nn.Module):
    """Holds the parameters of one part. Calling the module with a function calls that function with the parameters."""

    def __init__(self, part: Part, fresh: dict[str, Fresh]) -> None:
        super().__init__()
        self.part = part
        self.fresh = fresh
        narrow = torch.get_default_dtype()
        for name, parameter in fresh.items():
            dtype = accumulating(narrow) if parameter.precise else narrow
            self.register_parameter(name, nn.Parameter(torch.empty(parameter.shape, dtype=dtype)))

    @torch.no_grad()
    def fill(self, generator: torch.Generator | None) -> None:
        """Initialise every parameter as its part declares, except those that transformers marks as loaded from a file."""
        for name, fresh in self.fresh.items():
            parameter = self.get_parameter(name)
            if not getattr(parameter, "_is_hf_initialized", False):
                fresh.fill(parameter, generator)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> PartModule:
        """Apply a move or a cast, as nn.Module does. Precise parameters are at least float32."""
        precise = [parameter for name, parameter in self._parameters.items() if parameter is not None and self.fresh[name].precise]
        precise += [parameter.grad for parameter in precise if parameter.grad is not None]

        def apply(tensor: Tensor) -> Tensor:
            moved = fn(tensor)
            wide = accumulating(moved.dtype)
            if wide == moved.dtype or not any(tensor is parameter for parameter in precise):
                return moved
            # From the values before the cast, not from the rounded ones.
            return tensor.to(moved.device, wide)

        return super()._apply(apply, recurse)

    def extra_repr(self) -> str:
        """Return the part's kind and the shapes of its parameters."""
        return ", ".join([self.part.kind, *(f"{name} {tuple(fresh.shape)}" for name, fresh in self.fresh.items())])

    def forward(self, function: Callable[..., Any], *inputs: Any, **options: Any) -> Any:
        """The result of the function on the parameters and these inputs."""
        return function(self._parameters, *inputs, **options)


PRINTED_FOR: ContextVar[Setting | None] = ContextVar("setting of the layer whose heads are printed", default=None)
NOTHING = nullcontext()


def runs_autocast(device: str) -> bool:
    """Whether autocast is on for this type of device. There is none for tensors without numbers ("meta")."""
    return device != "meta" and torch.is_autocast_enabled(device)


def without_autocast(device: str) -> AbstractContextManager[Any]:
    """For the block, autocast is off."""
    return torch.autocast(device, enabled=False) if runs_autocast(device) else NOTHING


def setting_of(parameters: Iterable[Tensor]) -> Setting:
    """Return the setting of a module with these parameters: device and dtype of the first one that holds numbers."""
    first = next((parameter for parameter in parameters if parameter.is_floating_point()), None)
    return Setting() if first is None else Setting(first.device.type, dtype_name(first.dtype))


def precise_parameters(model: nn.Module) -> set[str]:
    """Return the full names of the parameters that are never narrower than float32."""
    return {
        f"{place}.{name}"
        for place, module in model.named_modules()
        if isinstance(module, PartModule)
        for name, fresh in module.fresh.items()
        if fresh.precise
    }


@torch.compiler.assume_constant_result
def _lower(head: Compiled, backend: str, *setting: Any) -> None:
    """Lower the head for such a call, if it has not been yet. torch.compile runs this as it compiles, and not in its graph, and
    accepts no named tuple. setting: the fields of the ``Setting``."""
    head.functions_for(backend, Setting(*setting))


class Anatomy(NamedTuple):
    """The insides of a head. place: the layer, and the number of heads in the groups before it. numbers: of its query heads in the
    layer. parts: modules by name."""

    head: HeadSpec
    graph: HeadGraph
    shape: Shape
    place: tuple[int, int]
    numbers: Sequence[int]
    parts: Mapping[str, Any]


class Head(nn.Module):
    """One group of H query heads on K key heads. place: the layer, and the number of heads in the groups before this one; random
    choices depend on them. numbers: of its query heads in the layer; None: they follow those groups."""

    def __init__(self, head: HeadSpec, shape: Shape, place: tuple[int, int] = (0, 0), numbers: Sequence[int] | None = None) -> None:
        super().__init__()
        self._compiled, self._place = compile_head(head, shape), place
        self._numbers = range(place[1], place[1] + shape.heads) if numbers is None else numbers
        self._printed: str = AUTO
        """The backend whose program ``print`` shows."""
        self._slots = self._compiled.graph.slots
        """The tensors of its state, for one batch row."""
        self._mixes = bool(self._compiled.graph.before_projections())
        """Whether a part mixes the hidden states before queries and keys are projected from them."""
        for node in self._compiled.graph.parts:
            if node.part is not None and node.module not in self._modules:
                self.add_module(node.module, PartModule(node.part, node.part.parameters(node.shape)))

    def _functions(self, value: Tensor, tokens: Tokens, backend: str) -> HeadFunctions:
        """Return the functions for a call with such values and tokens."""
        is_step, device = as_bool(value.shape[1] == 1), value.device.type
        dtype = str(value.dtype).removeprefix("torch.")  # ``dtype_name``, without a call
        setting = Setting(device, dtype, is_step, tokens.segment is not None, tokens.valid is not None, torch.is_grad_enabled())
        if torch.compiler.is_compiling():
            _lower(self._compiled, backend, *setting)
        return self._compiled.functions_for(backend, setting)

    def mix(self, hidden: Tensor, tokens: Tokens, state: State, backend: str, in_place: bool = False) -> tuple[Tensor, State]:
        """Return the hidden states that queries and keys are projected from, mixed where there is a mixer, and the mixer's new
        state."""
        if not self._mixes:
            return hidden, {}
        functions = self._functions(hidden, tokens, backend)
        with without_autocast(hidden.device.type):
            return functions.mix(self._modules, Call(tokens, state, self._compiled.shape, self._place, in_place), hidden)

    def forward(self, inputs: HeadInputs, state: State, backend: str, in_place: bool = False) -> tuple[Tensor, State]:
        """Run the head's function. Return the output ``B T H V`` and the new state. in_place: the caller does not need the old
        state, so it may be overwritten.

        Autocast is disabled: sums are kept in float32, for any dtype of the projections.
        """
        functions = self._functions(inputs.value, inputs.tokens, backend)
        call = Call(inputs.tokens, state, self._compiled.shape, self._place, in_place)
        with without_autocast(inputs.value.device.type):
            length = None if inputs.query.shape[1] <= SHORTEST else self._piece_length(inputs.query, backend)
            if length is None:
                output, carried = functions.run(self._modules, inputs, call)
            else:
                output, carried = run_in_pieces(functions, length, self._modules, inputs, call)
        # Raw numerators, and everything computed from them, have the accumulating dtype up to here.
        return output if output.dtype == inputs.value.dtype else output.to(inputs.value.dtype), carried

    def _piece_length(self, query: Tensor, backend: str) -> int | None:
        """Return the tokens of a piece; None: the program processes all of them at once."""
        if torch.is_grad_enabled() or not may_read_numbers(query):
            return None
        graph = self._compiled.graph
        if not takes_pieces(graph, backend, query.device.type):
            return None
        length = piece_length(graph, query[:, 0].numel())
        return length if length < query.shape[1] else None

    def empty_state(self, batch: int, dtype: torch.dtype, device: torch.device) -> State:
        """Return the state before the first token."""
        dtypes = slot_dtypes(dtype)
        return {
            name: torch.full((batch, *slot.shape), slot.empty, dtype=dtypes[slot.dtype], device=device)
            for name, slot in self._slots.items()
        }

    def extra_repr(self) -> str:
        """Return the functions that run, for several tokens and for one: on the layer's device, or, of a head by itself, on that of
        its parameters."""
        precise = precise_parameters(self)
        parameters = sorted(self.named_parameters(), key=lambda named: named[0] in precise)
        setting = PRINTED_FOR.get() or setting_of(parameter for _, parameter in parameters)
        texts = self._compiled.print_functions(self._printed, setting, "head")
        return "\n".join([f"# {heading(self._printed, setting.device, setting.dtype)}", *texts])


def anatomy(head: Head) -> Anatomy:
    """Return the graph, shape, place and modules of a head. They are not attributes of ``Head``, because a
    part's module may have the same name."""
    compiled = head._compiled
    return Anatomy(compiled.head, compiled.graph, compiled.shape, head._place, head._numbers, head._modules)
