"""Run a head's program piece by piece of a text, with access to every value between its steps."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from blocks.catalogue import PATTERNS
from blocks.flow import Partial, Tokens
from blocks.operation import Kind, Port, Setting, State
from blocks.part import Shown
from composer.graph.graph import SINKS, HeadGraph
from composer.graph.lowering import lower
from composer.graph.program import CallContext, Modules, Program, Step, Value
from composer.model.head import Head, anatomy, without_autocast
from converters.trunk import dtype_name

ROOM = 2**25
"""Numbers that one piece of a text may compute for all heads of a group and all pairs before it: 128 MiB in float32."""
LONGEST = 1024
"""Tokens of a piece at most."""


@dataclass(frozen=True)
class HeadCall:
    """The inputs of one call of a group of heads: hidden B T C, query B T H D, key and value B T K D, the tokens, sinks H."""

    hidden: Tensor
    query: Tensor
    key: Tensor
    value: Tensor
    tokens: Tokens
    sinks: Tensor | None = None

    def piece(self, columns: slice) -> HeadCall:
        """Some consecutive tokens, which are rotated as in the whole call."""
        tokens = replace(self.tokens.cut(columns), call=(self.tokens, columns))
        return self._each(lambda of: of[:, columns], tokens, self.sinks)

    @property
    def length(self) -> int:
        return self.query.shape[1]

    def detached(self) -> HeadCall:
        """The same inputs, detached from the graph of gradients."""
        return self._each(Tensor.detach, self.tokens, None if self.sinks is None else self.sinks.detach())

    def ordinary(self) -> HeadCall:
        """The same inputs; tensors of inference mode are copied."""
        tokens = self.tokens
        tensors = tokens.position, tokens.segment, tokens.valid, tokens.index, tokens.coordinates, self.sinks
        position, segment, valid, index, places, sinks = (None if of is None else ordinary(of) for of in tensors)
        assert position is not None
        return self._each(ordinary, Tokens(position, segment, valid, index, coordinates=places), sinks)

    def _each(self, change: Callable[[Tensor], Tensor], tokens: Tokens, sinks: Tensor | None) -> HeadCall:
        return HeadCall(change(self.hidden), change(self.query), change(self.key), change(self.value), tokens, sinks)


def ordinary(tensor: Tensor) -> Tensor:
    """Return the tensor, or, if it is a tensor of inference mode, which has no gradient, a copy."""
    return tensor.clone() if tensor.is_inference() else tensor


@dataclass(frozen=True)
class Piece:
    """The results of some consecutive tokens of a call.

    values: the outputs of each node, by node and port, and the head's inputs. entering: the values that enter the memories,
    B t K D. answers: for each memory, the answer that it computed, B t H D; ``values`` has the copy that the read used. shown: what
    parts show of themselves, by node and name; empty in a piece with gradients. state: after these tokens.
    """

    columns: slice
    tokens: Tokens
    values: Mapping[Value, Any]
    entering: Tensor
    answers: Mapping[str, Tensor]
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


def step_by_step(head: Head, backend: str, call: HeadCall, *, gradients: bool) -> Program:
    """Return the program for such a call, without the forms that join memories to their read, so that each memory has its own
    answer."""
    apart = tuple(pattern for pattern in PATTERNS if pattern.whole)
    tokens = call.tokens
    setting = Setting(
        call.value.device.type,
        dtype_name(call.value.dtype),
        documents=tokens.segment is not None,
        padded=tokens.valid is not None,
        gradients=gradients,
    )
    return lower(anatomy(head).graph, backend, setting, apart)


def pieces(head: Head, call: HeadCall, backend: str, *, gradients: bool = False, bounds: tuple[int, ...] = ()) -> Iterator[Piece]:
    """Yield the call in pieces, from an empty state, each from the state after the previous one. Together they are the output of
    one call. bounds: columns at which a piece must end. gradients: values are leaves, and answers have gradients for them; a
    piece's own graph is freed with the piece, that of the states is kept. Bidirectional heads process all tokens as one piece.
    """
    program = step_by_step(head, backend, call, gradients=gradients)
    names = [node.name for node, _ in anatomy(head).graph.memories]
    state = head.empty_state(call.value.shape[0], call.value.dtype, call.value.device)
    with torch.set_grad_enabled(gradients), without_autocast(call.value.device.type):
        for columns in _columns(head, call, bounds):
            own = call.piece(columns)
            inputs = {"hidden": own.hidden, "query": own.query, "key": own.key, "value": own.value}
            values: dict[Value, Any] = {(name, name): states for name, states in inputs.items()}
            if own.sinks is not None:
                values[SINKS, SINKS] = own.sinks
            values["value", "value"] = entering = own.value.detach().requires_grad_(gradients)
            answers: dict[str, Tensor] = {}
            shown: dict[tuple[str, str], Shown] = {}
            carried: State = {}
            context = CallContext(own.tokens, state, anatomy(head).place, in_place=False)
            for step in program.after:
                step.run(anatomy(head).parts, values, context, carried)
                if not gradients:
                    shown |= _shown_by(step, anatomy(head).parts, values, context)
                for node, port in _outputs_of(step):
                    if port.kind is Kind.VALUE:
                        entering = values[node, port.name].detach().requires_grad_(gradients)
                        values[node, port.name] = entering
                    if port.kind is Kind.PARTIAL and node in names:
                        partial: Partial = values[node, port.name]
                        answers[node] = partial.output
                        if gradients:
                            values[node, port.name] = replace(partial, output=partial.output.detach().requires_grad_())
            state = state | carried
            yield Piece(columns, own.tokens, values, entering, answers, shown, state)


def _shown_by(step: Step, parts: Modules, values: Mapping[Value, Any], context: CallContext) -> dict[tuple[str, str], Shown]:
    shown_by_node: dict[tuple[str, str], Shown] = {}
    for covered in step.covers:
        if covered.node.part is not None and covered.node.main:
            shown = parts[covered.node.module](covered.node.part.shows, covered.call(context), covered.all_inputs(values))
            shown_by_node |= {(covered.node.name, name): what for name, what in shown.items()}
    return shown_by_node


def _outputs_of(step: Step) -> Iterator[tuple[str, Port]]:
    for covered in step.covers:
        for port in covered.node.operation.gives:
            yield covered.node.name, port


def _columns(head: Head, call: HeadCall, bounds: tuple[int, ...]) -> Iterator[slice]:
    length = call.length
    if anatomy(head).shape.both_ways:
        yield slice(0, length)
        return
    batch, heads = call.query.shape[0], call.query.shape[2]
    most = max(16, min(LONGEST, ROOM // max(1, batch * heads * length)))
    edges = {0, length, *(bound for bound in bounds if 0 < bound < length)}
    start = 0
    for end in sorted(edges - {0}):
        count = math.ceil((end - start) / most)
        for index in range(count):
            yield slice(start + (end - start) * index // count, start + (end - start) * (index + 1) // count)
        start = end
