"""Run a head's program piece by piece of a text, with access to every value between its steps."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from blocks.catalogue import PATTERNS
from blocks.flow import Partial, Tokens
from blocks.operation import Call, Kind, Setting, State
from blocks.part import Shown
from composer.graph.graph import HeadGraph
from composer.graph.lowering import lower
from composer.graph.program import CoveredOperation, HeadFunctions, HeadInputs, Modules, Value
from composer.model.head import Head, anatomy, without_autocast
from converters.trunk import dtype_name

MOST_NUMBERS = 2**25
"""Numbers that one piece of a text may compute for all heads of a group and all pairs before it: 128 MiB in float32."""
LONGEST = 1024
"""Tokens of a piece at most."""


def ordinary(tensor: Tensor) -> Tensor:
    """Return the tensor, or, if it is a tensor of inference mode, which has no gradient, a copy."""
    return tensor.clone() if tensor.is_inference() else tensor


def ordinary_inputs(inputs: HeadInputs) -> HeadInputs:
    """Return the same inputs; tensors of inference mode are copied."""
    tokens = inputs.tokens
    further = tokens.segment, tokens.valid, tokens.index, tokens.coordinates
    segment, valid, index, places = (None if tensor is None else ordinary(tensor) for tensor in further)
    own_tokens = Tokens(ordinary(tokens.position), segment, valid, index, coordinates=places)
    return replace(inputs.map_tensors(ordinary), tokens=own_tokens)


@dataclass(frozen=True)
class Piece:
    """The results of some consecutive tokens of a call.

    values: the outputs of each node, by node and port, and the head's inputs. memory_values: the values that the memories receive,
    B t K V. memory_outputs: for each memory, the output that it computed, B t H D; ``values`` has the copy that the read used.
    shown: what parts show of themselves, by node and name; empty in a piece with gradients. state: after these tokens.
    """

    columns: slice
    tokens: Tokens
    values: Mapping[Value, Any]
    memory_values: Tensor
    memory_outputs: Mapping[str, Tensor]
    shown: Mapping[tuple[str, str], Shown]
    state: State

    def outputs_of(self, kind: Kind, graph: HeadGraph) -> dict[str, Any]:
        """Return the outputs of this kind, by the names of their nodes."""
        return {
            node.name: self.values[node.name, port.name]
            for node in graph.order
            for port in node.operation.gives
            if port.kind is kind and (node.name, port.name) in self.values
        }


def step_by_step(head: Head, backend: str, inputs: HeadInputs, *, gradients: bool) -> HeadFunctions:
    """Return the functions for such inputs, without the forms that join memories to their read, so that each memory has its own
    output."""
    apart = tuple(pattern for pattern in PATTERNS if pattern.is_closed)
    tokens = inputs.tokens
    setting = Setting(
        inputs.value.device.type,
        dtype_name(inputs.value.dtype),
        documents=tokens.segment is not None,
        padded=tokens.valid is not None,
        gradients=gradients,
    )
    return HeadFunctions(lower(anatomy(head).graph, backend, setting, apart))


def pieces(
    head: Head, inputs: HeadInputs, backend: str, *, gradients: bool = False, bounds: tuple[int, ...] = ()
) -> Iterator[Piece]:
    """Yield the tokens in pieces, from an empty state, each from the state after the previous one. Together they are the output of
    one call. bounds: columns at which a piece must end. gradients: values are leaves, and outputs have gradients for them; a
    piece's own graph is freed with the piece, that of the states is kept. Bidirectional heads process all tokens as one piece.
    """
    functions, insides = step_by_step(head, backend, inputs, gradients=gradients), anatomy(head)
    names = [node.name for node, _ in insides.graph.memories]
    state = head.empty_state(inputs.value.shape[0], inputs.value.dtype, inputs.value.device)
    with torch.set_grad_enabled(gradients), without_autocast(inputs.value.device.type):
        for columns in _columns(head, inputs, bounds):
            tokens = replace(inputs.tokens.cut(columns), call=(inputs.tokens, columns))  # rotated as in the whole call
            watcher = _Watcher(insides.parts, names, inputs.columns(columns, tokens), gradients=gradients)
            call = Call(tokens, state, insides.shape, insides.place)
            _, carried = functions.watched_head(insides.parts, call, *watcher.inputs.tensors, watcher)
            state = state | carried
            yield Piece(columns, tokens, watcher.values, watcher.memory_values, watcher.memory_outputs, watcher.shown, state)


class _Watcher:
    """A ``Watch`` that collects what a piece has. memories: the names of the memories' nodes."""

    def __init__(self, parts: Modules, memories: list[str], inputs: HeadInputs, *, gradients: bool) -> None:
        self._parts, self._memories, self._gradients = parts, memories, gradients
        self.inputs = replace(inputs, value=inputs.value.detach().requires_grad_(gradients))
        self.values = self.inputs.by_port()
        self.memory_values = self.inputs.value
        self.memory_outputs: dict[str, Tensor] = {}
        self.shown: dict[tuple[str, str], Shown] = {}

    def __call__(self, covered: CoveredOperation, call: Call, outputs: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the outputs; values, and the outputs of memories, become leaves where there are gradients."""
        self.values |= zip(covered.gives, outputs, strict=True)
        node = covered.node
        if not self._gradients and node.part is not None and node.main:
            shown = self._parts[node.module](node.part.shows, call.part(covered), inputs_of(covered, self.values))
            self.shown |= {(node.name, name): record for name, record in shown.items()}
        for value, port in zip(covered.gives, node.operation.gives, strict=True):
            if port.kind is Kind.VALUE:
                self.values[value] = self.memory_values = self.values[value].detach().requires_grad_(self._gradients)
            if port.kind is Kind.PARTIAL and node.name in self._memories:
                partial: Partial = self.values[value]
                self.memory_outputs[node.name] = partial.output
                if self._gradients:
                    self.values[value] = replace(partial, output=partial.output.detach().requires_grad_())
        return tuple(self.values[value] for value in covered.gives)


def inputs_of(covered: CoveredOperation, values: Mapping[Value, Any]) -> dict[str, Any]:
    """Return the inputs of an operation by port, with those from other operations of its step."""
    inputs: dict[str, Any] = {**covered.node.options, **{port.name: {} for port in covered.node.operation.reads if port.many}}
    for edge in (edge for edge in covered.edges if (edge.start, edge.output) in values):
        value = values[edge.start, edge.output]
        if edge.input in covered.many:
            inputs[edge.input][edge.label] = value
        else:
            inputs[edge.input] = value
    return inputs


def _columns(head: Head, inputs: HeadInputs, bounds: tuple[int, ...]) -> Iterator[slice]:
    length = inputs.length
    if anatomy(head).shape.both_ways:
        yield slice(0, length)
        return
    batch, heads = inputs.query.shape[0], inputs.query.shape[2]
    piece_length = max(16, min(LONGEST, MOST_NUMBERS // max(1, batch * heads * length)))
    edges = {0, length, *(bound for bound in bounds if 0 < bound < length)}
    start = 0
    for end in sorted(edges - {0}):
        count = math.ceil((end - start) / piece_length)
        for index in range(count):
            yield slice(start + (end - start) * index // count, start + (end - start) * (index + 1) // count)
        start = end
