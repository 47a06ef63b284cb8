"""Draws the graph of a head from its spec: a node for each operation, an edge for all that flows from one to another.

It draws every spec, also one without a meaning: ``composer.graph.rules`` refuses such graphs.
"""

from __future__ import annotations

from dataclasses import replace

from blocks.entry import Entry
from blocks.feature_maps.base import Scale
from blocks.legend import Number, Shape
from blocks.memories.base import Memory
from blocks.operation import EVICTED, Kind, Port
from blocks.part import FieldPath
from blocks.reads import Alone, Sinks
from composer.graph.composition import ALL, HeadSpec, edges, features_of, fed_by, gate_of, keys_of, memory_names, sources_of_pairs
from composer.graph.graph import OUTPUT, READ_NODE, SINKS, Draft, HeadGraph, cached_by_head


@cached_by_head
def build_graph(head: HeadSpec, shape: Shape) -> HeadGraph:
    """Return the graph of a completed head on a group of heads of this shape, from its inputs down to its output."""
    return _Wiring(head, shape).draft.finish()


class _Wiring:
    def __init__(self, head: HeadSpec, shape: Shape) -> None:
        self.draft, self.head, self.shared = Draft(), head, shape
        self.shape = replace(shape, key_heads=shape.heads) if head.unshare else shape
        self.names, self.feeds = memory_names(head), sources_of_pairs(head)
        self.memory = dict(zip(self.names, head.memory, strict=True))
        self.mapped = [name for name in self.names if self.memory[name].reads is Kind.FEATURES]
        self.convolved = head.conv.key_heads(self.shape) if head.conv and "k" in head.conv.inputs and self.mapped else 0
        self.inputs = "hidden"
        self.query, self.key, self.value = ("query", "query"), ("key", "key"), ("value", "value")
        self._sources()
        self._entry()
        for name in self.names:
            self._memory(name)
        if head.feature_map and not self.mapped:
            self.draft.add("feature_map", head.feature_map, self.shape, ("feature_map",))
            self._connect(self.query, "feature_map", "query")
        for name in self.names:
            for number, state in self._compared(name).items():
                self.draft.connect(features_of(state), name, "features", label=number)
        self._output()

    def _sources(self) -> None:
        head, shape = self.head, self.shape
        hidden = Port("hidden", Kind.HIDDEN, 1, shape.hidden_size)
        projected = (replace(hidden, needed=False),)
        shared = self.shared
        self.draft.source("hidden", hidden, shared)
        self.draft.source("query", Port("query", Kind.QUERY, shared.heads, shared.head_dim), shared, reads=projected)
        self.draft.source("key", Port("key", Kind.KEY, shared.key_heads, shared.head_dim), shared, reads=projected)
        self.draft.source("value", Port("value", Kind.VALUE, shared.key_heads, shared.value_dim), shared)
        if head.mix_input:
            self.draft.add("mix_input", head.mix_input, shape, ("mix_input",))
            self.draft.connect("hidden", "mix_input", "hidden")
            if head.mix_input.feeds == "inputs":
                self.inputs = "mix_input"
            else:
                self.draft.connect("mix_input", "query", "hidden")
                self.draft.connect("mix_input", "key", "hidden")
        if head.unshare:
            self.draft.add("unshare", head.unshare, shared, ("unshare",))
            for name in ("hidden", "key", "value"):
                self.draft.connect(name, "unshare", name)
            self.key, self.value = ("unshare", "key"), ("unshare", "value")
        self.projected = {"key": self.key}
        if head.qk_norm:
            self.draft.add("qk_norm", head.qk_norm, shape, ("qk_norm",))
            self._connect(self.query, "qk_norm", "query")
            self._connect(self.key, "qk_norm", "key")
            self.query, self.key = ("qk_norm", "query"), ("qk_norm", "key")
        self.exact = self.query
        if head.conv:
            self.draft.add("conv", head.conv, shape, ("conv",))
            sources = {"query": self.query, "key": self.key, "value": self.value}
            for port in head.conv.operation(shape).reads:
                self._connect(sources[port.name], "conv", port.name)
            if "q" in head.conv.inputs:
                self.query = ("conv", "query")
            if "v" in head.conv.inputs:
                self.value = ("conv", "value")
        if head.value_position:
            self.draft.add("value_position", head.value_position, shape, ("value_position",))
            self._connect(self.value, "value_position", "value")
            self.value = ("value_position", "value")

    def _entry(self) -> None:
        """Add the pairs of the call, with the numbers that memories need of each; no node if no memory reads pairs."""
        if not self.feeds:
            return
        self.draft.add(ALL, Entry(), replace(self.shape, convolved_heads=self.convolved), None)
        self._connect(self.key, ALL, "key")
        if self.convolved:
            self.draft.connect("conv", ALL, "convolved", output="key")
        self._connect(self.value, ALL, "value")
        for name, memory in self.memory.items():
            for number, rate in memory.rates().items():
                self.draft.add(number, rate, self.shape, (*self._path(name), "rate"))
                self.draft.connect("hidden", number, "hidden")
                self.draft.connect(number, ALL, "numbers", label=number)

    def _memory(self, name: str) -> None:
        memory, shape = self.memory[name], self.shape
        if memory.reads is Kind.FEATURES:
            self._state(name, memory)
        elif memory.reads is Kind.HIDDEN:
            self.draft.add(name, memory, shape, self._path(name))
            self.draft.connect(self.inputs, name, "hidden")
            self._connect(self.value, name, "value")
            self._feed(name)
        else:
            below = self._all_below(name)
            features = any(other in self.mapped for other in below)
            memory_shape = replace(shape, convolved_heads=self.convolved if features else 0, numbers=self._numbers(name, below))
            if above := self._above(name):
                memory_shape = replace(memory_shape, arriving=above.evicted_at_once)
            if memory.reads_below and features:
                memory_shape = replace(memory_shape, features=self._state_shape(below[0]).features)
            compared = self._compared(name)
            if compared:
                memory_shape = replace(memory_shape, exponential=self._state_shape(next(iter(compared.values()))).exponential)
            maps = {number: keys_of(state) for number, state in compared.items()}
            rotation = memory.rotation if memory.receives_rotated else None
            self.draft.add(name, memory, memory_shape, self._path(name), maps=maps, rotation=rotation)
            self._connect(self.exact, name, "query")
            self._feed(name)
            self._gate(name, replace(shape, state_heads=shape.heads))
        weighing = memory.weighing(shape)
        if weighing is not None:
            self.draft.add(f"{name}.weight", memory, shape, None, module=name, operation=weighing)
            self.draft.connect(self.inputs if memory.weight == "token" else "hidden", f"{name}.weight", "hidden")

    def _state(self, name: str, memory: Memory) -> None:
        """A memory that reads features, with its feature map and, where it has one, its gate above it."""
        mapping, shape = self.head.feature_map, self._state_shape(name)
        if mapping:
            scale: Scale = "logarithm" if mapping.exponential else "plain"
            options = {"scale": memory.features_as or scale}
            self.draft.add(
                features_of(name),
                mapping,
                shape,
                ("feature_map",),
                module="feature_map",
                options=options,
                rotation=memory.rotation,
            )
            self._connect(self.query, features_of(name), "query")
            keys = mapping.operation_of_keys(shape, self._incoming(name))
            options = {"position": memory.rotation, **options}
            self.draft.add(keys_of(name), mapping, shape, None, module="feature_map", operation=keys, options=options)
            self._feed(name, keys_of(name), "entering")
        # Values that a state makes itself, beside those of tokens, have keys that it maps itself.
        self.draft.add(name, memory, shape, self._path(name), maps={"steps": keys_of(name)} if memory.brings_values else None)
        if mapping:
            self.draft.connect(features_of(name), name, "features")
            self.draft.connect(keys_of(name), name, "keys")
        self._feed(name)
        self._gate(name, shape)
        if any(port.name == "hidden" for port in memory.inputs(shape)):
            self.draft.connect("hidden", name, "hidden")

    def _gate(self, name: str, shape: Shape) -> None:
        """The gate of a memory that forgets."""
        gate = self.memory[name].gates
        if gate is None or gate.rank_of_decay == "none":
            return
        self.draft.add(gate_of(name), gate, shape, (*self._path(name), "gate"))
        for port in gate.operation(shape).reads:
            self._connect(self.projected.get(port.name, (port.name, port.name)), gate_of(name), port.name)
        self.draft.connect(gate_of(name), name, "decay", output="decay")
        if any(port.name == "step" for port in self.memory[name].inputs(shape)):
            self.draft.connect(gate_of(name), name, "step", output="step")

    def _connect(self, start: tuple[str, str], end: str, to: str) -> None:
        """start: a node, and which of its outputs."""
        self.draft.connect(start[0], end, to, output=start[1])

    def _feed(self, name: str, end: str | None = None, port: str = "pairs") -> None:
        """Connect the memory to its source of pairs: those of the call, or those that the memory above evicts. end, port: what is
        connected in place of the memory."""
        if source := self.feeds.get(name):
            path = ("graph", edges(self.head).index((source, name))) if self.head.graph else None
            self.draft.connect(source, end or name, port, output=EVICTED if source in self.memory else None, path=path)

    def _above(self, name: str) -> Memory | None:
        """Return the memory that feeds this one, if one does."""
        return self.memory.get(self.feeds.get(name, ALL))

    def _state_shape(self, name: str) -> Shape:
        memory, mapping, incoming = self.memory[name], self.head.feature_map, self._incoming(name)
        shape = replace(self.shape, convolved_heads=incoming if incoming != self.shape.key_heads else self.convolved)
        mapped = mapping.key_heads(shape, incoming) if mapping else incoming
        mapped = max([mapped, *(rate.heads(shape) for rate in memory.rates().values())])
        gate = memory.gates
        return replace(
            shape,
            features=mapping.features(shape) if mapping else 0,
            state_heads=gate.key_heads(shape, mapped) if gate else mapped,
            exponential=bool(mapping and mapping.exponential and memory.features_as is None),
            even=bool(mapping and mapping.even),
            signed=bool(mapping and not mapping.positive),
        )

    def _incoming(self, name: str) -> int:
        """Return the number of heads of the keys that a memory's feature map reads."""
        above = self._above(name)
        return self.shape.heads if above and above.per_query_head else self.convolved or self.shape.key_heads

    def _all_below(self, name: str) -> list[str]:
        """Return the memories that a pair may be evicted into later, nearest first."""
        below: list[str] = []
        for other in fed_by(self.head, name):
            below += [other, *self._all_below(other)]
        return below

    def _numbers(self, name: str, below: list[str]) -> tuple[Number, ...]:
        """Return the numbers of each pair in a memory: rates of the memories below, and sums of this memory and of those next
        below."""
        rates = (item for other in self.names if other in below for item in self.memory[other].rates().items())
        sums = (number for other in (name, *fed_by(self.head, name)) for number in self.memory[other].sums(self.shape))
        return (*(Number(number, rate.heads(self.shape)) for number, rate in rates), *sums)

    def _compared(self, name: str) -> dict[str, str]:
        """Return the numbers that a window sums for the memories below it, each with the state whose features it compares."""
        sums = any(port.name == "features" and port.many for port in self.memory[name].inputs(self.shape))
        return {
            number.name: state
            for cache in (fed_by(self.head, name) if sums and self.head.feature_map else ())
            for number in self.memory[cache].sums(self.shape)
            for state in fed_by(self.head, cache)[:1]
            if state in self.mapped
        }

    def _output(self) -> None:
        head, shape = self.head, self.shape
        self.draft.add(READ_NODE, head.read or Alone(), shape, ("read",) if head.read else None)
        sinking = self._sinking()
        for name, memory in self.memory.items():
            self.draft.connect("with_host_sinks" if name == sinking else name, READ_NODE, "partial", label=name)
            weighed = self._above(name) if memory.weight == "same" else memory
            if weighed and weighed.weighing(shape) is not None:
                self.draft.connect(f"{weighed.called}.weight", READ_NODE, "weight", label=name)
        last = READ_NODE
        if head.value_position is not None:
            way_out = head.value_position.way_out(shape)
            path = ("value_position",)
            self.draft.add("value_position_back", head.value_position, shape, path, module="value_position", operation=way_out)
            self.draft.connect(last, "value_position_back", "output")
            last = "value_position_back"
        if head.output is not None:
            self.draft.add("output_norm", head.output, shape, ("output",))
            self.draft.connect(last, "output_norm", "output")
            self.draft.connect("hidden", "output_norm", "hidden")
            last = "output_norm"
        self.draft.sink(OUTPUT, Port("output", Kind.OUTPUT, shape.heads, shape.value_dim), shape)
        self.draft.connect(last, OUTPUT, "output")

    def _sinking(self) -> str | None:
        """Return the memory that the model's attention sinks, if any, are added to: an exact one if there is one."""
        masses = [name for name in self.names if self.memory[name].has_mass()]
        if not self.shape.sinks or not masses:
            return None
        name = next((name for name in masses if self.memory[name].exact), masses[0])
        self.draft.source(SINKS, Port(SINKS, Kind.SINKS, self.shape.heads, 1), self.shape)
        self.draft.add("with_host_sinks", Sinks(), self.shape, None)
        self.draft.connect(name, "with_host_sinks", "partial")
        self.draft.connect(SINKS, "with_host_sinks", "sinks")
        return name

    def _path(self, name: str) -> FieldPath:
        return ("memory", self.names.index(name))
