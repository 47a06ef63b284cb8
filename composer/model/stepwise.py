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
from blocks.operation import Call, Kind, Port, Setting, State
from blocks.part import Shown
from composer.graph.graph import HeadGraph
from composer.graph.lowering import lower
from composer.graph.program import HeadInputs, Modules, Program, Step, Value
from composer.model.head import Head, anatomy, without_autocast
from converters.trunk import dtype_name

ROOM = 2**25
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
    segment, valid, index, places = (None if of is None else ordinary(of) for of in further)
    own_tokens = Tokens(ordinary(tokens.position), segment, valid, index, coordinates=places)
    return replace(inputs.each(ordinary), tokens=own_tokens)


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


def step_by_step(head: Head, backend: str, inputs: HeadInputs, *, gradients: bool) -> Program:
    """Return the program for such inputs, without the forms that join memories to their read, so that each memory has its own
    output."""
    apart = tuple(pattern for pattern in PATTERNS if pattern.whole)
    tokens = inputs.tokens
    setting = Setting(
        inputs.value.device.type,
        dtype_name(inputs.value.dtype),
        documents=tokens.segment is not None,
        padded=tokens.valid is not None,
        gradients=gradients,
    )
    return lower(anatomy(head).graph, backend, setting, apart)


def pieces(
    head: Head, inputs: HeadInputs, backend: str, *, gradients: bool = False, bounds: tuple[int, ...] = ()
) -> Iterator[Piece]:
    """Yield the tokens in pieces, from an empty state, each from the state after the previous one. Together they are the output of
    one call. bounds: columns at which a piece must end. gradients: values are leaves, and outputs have gradients for them; a
    piece's own graph is freed with the piece, that of the states is kept. Bidirectional heads process all tokens as one piece.
    """
    program, insides = step_by_step(head, backend, inputs, gradients=gradients), anatomy(head)
    names = [node.name for node, _ in insides.graph.memories]
    state = head.empty_state(inputs.value.shape[0], inputs.value.dtype, inputs.value.device)
    with torch.set_grad_enabled(gradients), without_autocast(inputs.value.device.type):
        for columns in _columns(head, inputs, bounds):
            tokens = replace(inputs.tokens.cut(columns), call=(inputs.tokens, columns))  # rotated as in the whole call
            values = inputs.columns(columns, tokens).by_port()
            values["value", "value"] = memory_values = values["value", "value"].detach().requires_grad_(gradients)
            memory_outputs: dict[str, Tensor] = {}
            shown: dict[tuple[str, str], Shown] = {}
            carried: State = {}
            call = Call(tokens, state, insides.shape, insides.place)
            for step in program.after:
                step.run(insides.parts, values, call, carried)
                if not gradients:
                    shown |= _shown_by(step, insides.parts, values, call)
                for node, port in _outputs_of(step):
                    if port.kind is Kind.VALUE:
                        memory_values = values[node, port.name].detach().requires_grad_(gradients)
                        values[node, port.name] = memory_values
                    if port.kind is Kind.PARTIAL and node in names:
                        partial: Partial = values[node, port.name]
                        memory_outputs[node] = partial.output
                        if gradients:
                            values[node, port.name] = replace(partial, output=partial.output.detach().requires_grad_())
            state = state | carried
            yield Piece(columns, tokens, values, memory_values, memory_outputs, shown, state)


def _shown_by(step: Step, parts: Modules, values: Mapping[Value, Any], call: Call) -> dict[tuple[str, str], Shown]:
    shown_by_node: dict[tuple[str, str], Shown] = {}
    for covered in step.covers:
        if covered.node.part is not None and covered.node.main:
            shown = parts[covered.node.module](covered.node.part.shows, covered.own_call(call), covered.all_inputs(values))
            shown_by_node |= {(covered.node.name, name): what for name, what in shown.items()}
    return shown_by_node


def _outputs_of(step: Step) -> Iterator[tuple[str, Port]]:
    for covered in step.covers:
        for port in covered.node.operation.gives:
            yield covered.node.name, port


def _columns(head: Head, inputs: HeadInputs, bounds: tuple[int, ...]) -> Iterator[slice]:
    length = inputs.length
    if anatomy(head).shape.both_ways:
        yield slice(0, length)
        return
    batch, heads = inputs.query.shape[0], inputs.query.shape[2]
    most = max(16, min(LONGEST, ROOM // max(1, batch * heads * length)))
    edges = {0, length, *(bound for bound in bounds if 0 < bound < length)}
    start = 0
    for end in sorted(edges - {0}):
        count = math.ceil((end - start) / most)
        for index in range(count):
            yield slice(start + (end - start) * index // count, start + (end - start) * (index + 1) // count)
        start = end
