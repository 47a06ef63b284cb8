"""The program of a head: the steps that run, in order. It is what ``explain`` prints, too.

A step covers one operation, or several that one form computes together. It names what it reads, what it gives and which tensors of
the state are its own; all of that is bound when the head is compiled.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from blocks.flow import Tokens, repeat_heads
from blocks.kernels import Refused
from blocks.operation import Bound, Call, Form, Kind
from blocks.part import State
from composer.graph.graph import Edge, Node


class FallsBack(RuntimeWarning):
    """Something runs on another form than it would, and the same comes of it, later."""


_told: set[str] = set()


def tell(why: str, instead: str = "") -> None:
    """Warn, once a process for each reason, that something runs otherwise than it would. instead: what runs, in a sentence."""
    if why not in _told:
        _told.add(why)
        warnings.warn(f"{why}. {instead}" if instead else why, FallsBack, stacklevel=2)


Value = tuple[str, str]
"""What a node gives at a port."""
Modules = Mapping[str, Any]
"""By name, what holds each part's parameters: called with a function and its inputs, it calls the function with the parameters
before them."""


@dataclass(slots=True)  # one a call of a head, and not frozen, which would take three times as long to make
class Around:
    """What one call of a head hands to all of its steps. place: the layer, and the first of these heads in it. in_place: nobody
    else holds the state. turned: the queries as its steps have turned them."""

    tokens: Tokens
    state: State
    place: tuple[int, int]
    in_place: bool
    turned: dict[Any, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class CoveredOperation:
    """One operation within a step: where its inputs come from, what it gives, and its state's tensors, by their own names and by
    those that they have in the head."""

    node: Node
    single: tuple[tuple[str, Value], ...]
    many: tuple[tuple[str, tuple[tuple[str | None, Value], ...]], ...]
    inside: tuple[tuple[str, Value], ...]
    """What comes from another operation of its step, which the step's form passes on by itself."""
    options: tuple[tuple[str, Any], ...]
    gives: tuple[Value, ...]
    slots: tuple[tuple[str, str], ...]
    mass_asked: bool

    def inputs(self, values: Mapping[Value, Any]) -> dict[str, Any]:
        """The arguments of a form, by name."""
        given = dict(self.options)
        for port, source in self.single:
            given[port] = values[source]
        for port, sources in self.many:
            given[port] = {label: values[source] for label, source in sources} if sources else {}
        return given

    def call(self, around: Around) -> Call:
        """What the operation knows beside its inputs."""
        state = {name: around.state[full] for name, full in self.slots} if self.slots else {}
        return Call(around.tokens, state, self.node.shape, around.place, around.in_place, self.mass_asked, around.turned)

    def keep(self, given: tuple[Any, State], values: dict[Value, Any], carried: State) -> None:
        """Write what the operation has given, and its new state."""
        outputs, state = given
        for value, output in zip(self.gives, outputs, strict=True):
            values[value] = output
        for name, full in self.slots:
            carried[full] = state[name]


@dataclass(frozen=True)
class Step:
    """One form, and the operations that it computes. names: what the form calls them; why: why no faster form was taken; missing:
    what is not installed that faster ones take; instead: what runs where the form refuses."""

    covers: tuple[CoveredOperation, ...]
    names: tuple[str, ...]
    form: Form
    why: str
    missing: tuple[str, ...] = ()
    instead: tuple[Step, ...] = ()

    def run(self, modules: Modules, values: dict[Value, Any], around: Around, carried: State) -> None:
        """Compute, and write what comes of it to ``values`` and ``carried``."""
        if not self.instead:
            self._compute(modules, values, around, carried)
            return
        try:
            self._compute(modules, values, around, carried)
        except Refused as refusal:
            following = ", ".join(f"{step.form.says} ({step.form.backend})" for step in self.instead)
            tell(str(refusal), f"In its place: {following}")
            for step in self.instead:
                step.run(modules, values, around, carried)

    def given(self, kind: Kind) -> Iterator[Value]:
        """What it gives of a kind."""
        for one in self.covers:
            yield from ((one.node.name, port.name) for port in one.node.operation.gives if port.kind is kind)

    def _compute(self, modules: Modules, values: dict[Value, Any], around: Around, carried: State) -> None:
        if len(self.covers) == 1:
            (only,) = self.covers
            only.keep(modules[only.node.module](self.form.run, only.call(around), **only.inputs(values)), values, carried)
            return
        bound, inputs = {}, {}
        for name, one in zip(self.names, self.covers, strict=True):
            assert one.node.part is not None
            bound[name] = Bound(one.node.part, one.call(around), modules[one.node.module])
            inputs[name] = one.inputs(values)
        for one, given in zip(self.covers, self.form.run(bound, inputs), strict=True):
            one.keep(given, values, carried)


@dataclass(frozen=True)
class Program:
    """before: the steps that queries and keys are projected from; after: the others."""

    before: tuple[Step, ...]
    after: tuple[Step, ...]
    mixed: Value
    """What queries and keys are projected from."""
    output: Value

    @property
    def steps(self) -> tuple[Step, ...]:
        return (*self.before, *self.after)

    def mix(self, modules: Modules, hidden: Any, around: Around) -> tuple[Any, State]:
        """What queries and keys are projected from, and the new state of what gave it."""
        values: dict[Value, Any] = {("hidden", "hidden"): hidden}
        carried: State = {}
        for step in self.before:
            step.run(modules, values, around, carried)
        return values[self.mixed], carried

    def run(self, modules: Modules, inputs: Mapping[str, Any], around: Around, *, entering: Any = None) -> tuple[Any, State]:
        """The head's output and the rest of its new state. inputs: by the names of ``composer.graph.graph.INPUTS``. entering:
        values that memories are given, in place of what a step makes of the head's own, and for as many heads."""
        values: dict[Value, Any] = {(name, name): given for name, given in inputs.items()}
        carried: State = {}
        for step in self.after:
            step.run(modules, values, around, carried)
            if entering is not None:
                values |= {one: repeat_heads(entering, values[one].shape[2]) for one in step.given(Kind.VALUE)}
        return values[self.output], carried


def covered(
    node: Node, edges: tuple[Edge, ...], step: frozenset[str] = frozenset(), *, mass_asked: bool = True
) -> CoveredOperation:
    """An operation with these edges into it; an input that takes several and has none is handed an empty mapping. step: the
    names of the operations that are computed with it. mass_asked: of a memory, that a read asks for its lse."""
    inside = tuple((edge.input, (edge.start, edge.output)) for edge in edges if edge.start in step)
    edges = tuple(edge for edge in edges if edge.start not in step)
    single, many = [], []
    for port in node.operation.reads:
        sources = [edge for edge in edges if edge.input == port.name]
        if port.many:
            many.append((port.name, tuple((edge.label, (edge.start, edge.output)) for edge in sources)))
        else:
            single += [(port.name, (edge.start, edge.output)) for edge in sources]
    gives = tuple((node.name, port.name) for port in node.operation.gives)
    slots = tuple((name, f"{node.name}.{name}") for name in node.operation.slots)
    return CoveredOperation(node, tuple(single), tuple(many), inside, tuple(node.options.items()), gives, slots, mass_asked)
