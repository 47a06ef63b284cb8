"""The program of a head: the steps that run, in order. It is what ``explain`` prints, too.

A step covers one operation, or several that one form computes together. It lists its inputs, its outputs and its tensors of the
state. These are bound when the head is compiled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from blocks.flow import Tokens
from blocks.kernels import Refused
from blocks.legend import Tensor
from blocks.operation import Call, Form, Kind, State
from blocks.pattern import Bound
from blocks.tensors import repeat_heads
from composer.graph.graph import SINKS, Edge, Node
from composer.notices import warn_caller


class FallsBack(RuntimeWarning):
    """An operation runs on another form than the chosen one, with the same result."""


_warned: set[str] = set()


def tell(why: str, instead: str = "") -> None:
    """Warn, once a process for each reason, that another form runs. instead: the form that runs, in a sentence."""
    if why not in _warned:
        _warned.add(why)
        warn_caller(f"{why}. {instead}" if instead else why, FallsBack)


Value = tuple[str, str]
"""The output of a node at a port, by the names of both."""
Modules = Mapping[str, Any]
"""The modules with the parts' parameters, by name. Called with a function and its inputs, a module calls the function with its
parameters before them."""


@dataclass(frozen=True, slots=True)
class HeadInputs:
    """The inputs of the heads of a layer, or of one group of them, in one call.

    - hidden: ``B T C``, the input of the layer's attention.
    - query: ``B T H D``, scaled so that logits are query · key / √D.
    - key: ``B T K D``. Neither queries nor keys are rotated.
    - value: ``B T K V``.
    - tokens: positions, documents and padding.
    - sinks: ``H``, the logits of the host's attention sinks; None if it has none.
    - value_is_final: the memories receive ``value`` unchanged: a convolution or a position of values has no effect.
    """

    hidden: Tensor
    query: Tensor
    key: Tensor
    value: Tensor
    tokens: Tokens
    sinks: Tensor | None = None
    value_is_final: bool = False

    @property
    def length(self) -> int:
        """The number of tokens."""
        return self.query.shape[1]

    def by_port(self) -> dict[Value, Any]:
        """Return the tensors by their nodes and ports in a head's graph."""
        values: dict[Value, Any] = {
            ("hidden", "hidden"): self.hidden,
            ("query", "query"): self.query,
            ("key", "key"): self.key,
            ("value", "value"): self.value,
        }
        if self.sinks is not None:
            values[SINKS, SINKS] = self.sinks
        return values

    def columns(self, columns: slice, tokens: Tokens) -> HeadInputs:
        """Return the inputs of some consecutive tokens. tokens: those of the columns."""
        hidden, query, key, value = (states[:, columns] for states in (self.hidden, self.query, self.key, self.value))
        return replace(self, hidden=hidden, query=query, key=key, value=value, tokens=tokens)

    def detach(self) -> HeadInputs:
        """Return the same inputs, detached from the graph of gradients."""
        return self.each(lambda of: of.detach())

    def each(self, change: Callable[[Tensor], Tensor]) -> HeadInputs:
        """Return the inputs with every tensor but those of ``tokens`` changed by a function."""
        hidden, query, key, value = map(change, (self.hidden, self.query, self.key, self.value))
        sinks = None if self.sinks is None else change(self.sinks)
        return replace(self, hidden=hidden, query=query, key=key, value=value, sinks=sinks)


@dataclass(frozen=True)
class CoveredOperation:
    """One operation within a step: the sources of its inputs, its outputs, and the tensors of its state, by their own names and by
    their names in the head's state."""

    node: Node
    edges: tuple[Edge, ...]
    """All edges into it. Those from another operation of the step are in none of the fields below: the step's form passes on what
    flows there by itself."""
    single: tuple[tuple[str, Value], ...]
    many: tuple[tuple[str, tuple[tuple[str | None, Value], ...]], ...]
    options: tuple[tuple[str, Any], ...]
    gives: tuple[Value, ...]
    slots: tuple[tuple[str, str], ...]
    needs_mass: bool

    def inputs(self, values: Mapping[Value, Any]) -> dict[str, Any]:
        """Return the arguments of a form, by name."""
        arguments = dict(self.options)
        for port, source in self.single:
            arguments[port] = values[source]
        for port, sources in self.many:
            arguments[port] = {label: values[source] for label, source in sources} if sources else {}
        return arguments

    def all_inputs(self, values: Mapping[Value, Any]) -> dict[str, Any]:
        """Return the same after the step has run, with the outputs of the step's other operations."""
        arguments = self.inputs(values)
        many = {port.name for port in self.node.operation.reads if port.many}
        for edge in self.edges:
            value = edge.start, edge.output
            if value in values:
                arguments[edge.input] = arguments[edge.input] | {edge.label: values[value]} if edge.input in many else values[value]
        return arguments

    def own_call(self, call: Call) -> Call:
        """Return the operation's call, with its own state and shape, of its head's."""
        state = {name: call.state[full] for name, full in self.slots} if self.slots else {}
        return Call(call.tokens, state, self.node.shape, call.place, call.in_place, self.needs_mass, call.rotated)

    def keep(self, result: tuple[Any, State], values: dict[Value, Any], carried: State) -> None:
        """Write the operation's outputs to ``values``, and its new state to ``carried``."""
        outputs, state = result
        for value, output in zip(self.gives, outputs, strict=True):
            values[value] = output
        for name, full in self.slots:
            carried[full] = state[name]


@dataclass(frozen=True)
class Step:
    """One form, and the operations that it computes. names: the form's names of them; why: why it is this form; missing:
    packages of earlier forms that are not installed; instead: the steps that run if the form refuses."""

    covers: tuple[CoveredOperation, ...]
    names: tuple[str, ...]
    form: Form
    why: str
    missing: tuple[str, ...] = ()
    instead: tuple[Step, ...] = ()

    def run(self, modules: Modules, values: dict[Value, Any], call: Call, carried: State) -> None:
        """Compute the outputs, and write them to ``values``, and the new state to ``carried``. call: the head's."""
        if not self.instead:
            self._compute(modules, values, call, carried)
            return
        try:
            self._compute(modules, values, call, carried)
        except Refused as refusal:
            following = ", ".join(f"{step.form.description} ({step.form.backend})" for step in self.instead)
            tell(str(refusal), f"In its place: {following}")
            for step in self.instead:
                step.run(modules, values, call, carried)

    def outputs_of(self, kind: Kind) -> Iterator[Value]:
        """Yield the step's outputs of a kind."""
        for operation in self.covers:
            yield from ((operation.node.name, port.name) for port in operation.node.operation.gives if port.kind is kind)

    def _compute(self, modules: Modules, values: dict[Value, Any], call: Call, carried: State) -> None:
        if len(self.covers) == 1:
            (only,) = self.covers
            only.keep(modules[only.node.module](self.form.run, only.own_call(call), **only.inputs(values)), values, carried)
            return
        bound, inputs = {}, {}
        for name, operation in zip(self.names, self.covers, strict=True):
            assert operation.node.part is not None
            bound[name] = Bound(operation.node.part, operation.own_call(call), modules[operation.node.module])
            inputs[name] = operation.inputs(values)
        for operation, result in zip(self.covers, self.form.run(bound, inputs), strict=True):
            operation.keep(result, values, carried)


@dataclass(frozen=True)
class Program:
    """before: the steps that queries and keys are projected from; after: the others."""

    before: tuple[Step, ...]
    after: tuple[Step, ...]
    mixed: Value
    """The value that queries and keys are projected from."""
    output: Value

    @property
    def steps(self) -> tuple[Step, ...]:
        return (*self.before, *self.after)

    def mix(self, modules: Modules, hidden: Tensor, call: Call) -> tuple[Tensor, State]:
        """Return the hidden states that queries and keys are projected from, and the new state of the steps before."""
        values: dict[Value, Any] = {("hidden", "hidden"): hidden}
        carried: State = {}
        for step in self.before:
            step.run(modules, values, call, carried)
        return values[self.mixed], carried

    def run(self, modules: Modules, inputs: HeadInputs, call: Call) -> tuple[Tensor, State]:
        """Return the head's output and the rest of its new state."""
        values = inputs.by_port()
        carried: State = {}
        for step in self.after:
            step.run(modules, values, call, carried)
            if inputs.value_is_final:
                values |= {value: repeat_heads(inputs.value, values[value].shape[2]) for value in step.outputs_of(Kind.VALUE)}
        return values[self.output], carried


def cover(node: Node, edges: tuple[Edge, ...], step: frozenset[str] = frozenset(), *, needs_mass: bool = True) -> CoveredOperation:
    """Return an operation with these edges into it. A port for several edges gets ``{}`` if it has none.

    step: the names of the operations in the same step. needs_mass: whether a read needs a memory's lse.
    """
    outside = tuple(edge for edge in edges if edge.start not in step)
    single, many = [], []
    for port in node.operation.reads:
        sources = [edge for edge in outside if edge.input == port.name]
        if port.many:
            many.append((port.name, tuple((edge.label, (edge.start, edge.output)) for edge in sources)))
        else:
            single += [(port.name, (edge.start, edge.output)) for edge in sources]
    gives = tuple((node.name, port.name) for port in node.operation.gives)
    slots = tuple((name, f"{node.name}.{name}") for name in node.operation.slots)
    return CoveredOperation(node, edges, tuple(single), tuple(many), tuple(node.options.items()), gives, slots, needs_mass)
