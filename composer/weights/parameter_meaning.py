"""The meaning of heads' parameters: a name and a shape do not determine whether trained values fit another head."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from blocks.feature_maps.base import FeatureMap
from blocks.gates.base import Gate
from blocks.memories.base import Memory
from blocks.operation import Kind
from blocks.part import Part
from composer.errors import BuildError
from composer.graph.graph import READ_NODE, Edge, HeadGraph, Node, ancestors
from composer.graph.wiring import build_graph
from composer.reporting.words import ranges
from composer.spec.external_parts import find_unregistered_kind, needed_part_message
from composer.spec.layer_rules import key_heads_of
from composer.spec.resolve import Resolved, meaning, prefix
from composer.spec.writing import format_value
from converters.composed import SPEC_KEYS

READ = {Kind.HIDDEN, Kind.QUERY, Kind.KEY, Kind.PAIRS}
"""The kinds of edges that parameters are applied to. Values, partials and numbers of pairs change no parameter's meaning."""


@dataclass(frozen=True)
class Meaning:
    """The role that a parameter's values were trained for, in the words of a spec: values fit if all fields are equal.

    part: the parameter's owner, without incidental fields. heads: the layer's heads that it belongs to. seen: the parts that change
    states before the owner reads them. beside: the read that uses a memory's weight, or the map whose features a gate decays.
    """

    part: str
    heads: str
    seen: str
    beside: str

    def difference(self, other: Meaning) -> str | None:
        """Return why values of ``other`` do not fit here; None where they do."""
        if self.part != other.part:
            return f"it was made for `{other.part}`, and here is `{self.part}`"
        if self.heads != other.heads:
            return f"it was made for {other.heads} of the layer, and these are {self.heads}"
        if self.seen != other.seen:
            return f"its `{self.part}` saw {other.seen}, and sees {self.seen} here"
        if self.beside != other.beside:
            return f"it was beside `{other.beside}`, and is beside `{self.beside}` here"
        return None


def meanings(resolved: Resolved) -> dict[str, Meaning]:
    """Return the meaning of every part of every head, by the prefix of its parameters' full names."""
    by_prefix: dict[str, Meaning] = {}
    for layer, groups in enumerate(resolved.layers):
        for group, numbers in zip(groups, key_heads_of(groups), strict=True):
            graph, per_key = build_graph(resolved.heads[group.head], resolved.shape(group.heads)), group.heads // group.key_heads
            heads = f"heads {ranges([number * per_key + index for number in numbers for index in range(per_key)])}"
            for module, part, seen, beside in _modules(graph):
                by_prefix[prefix(resolved, layer, group.head) + module] = Meaning(_describe(part), heads, seen, beside)
    return by_prefix


def read_stored_heads(config: Mapping[str, Any]) -> Resolved | None:
    """Return the heads in the config of a composed model; None if it has none. Raises BuildError if they are damaged."""
    document, spec_hash = (config.get(key) for key in SPEC_KEYS)
    if document is None:
        return None
    try:
        resolved = Resolved.model_validate(document)
    except ValidationError as error:
        if (kind := find_unregistered_kind(error)) is not None:
            raise BuildError(f"{needed_part_message('The source', kind, {})}.") from error
        raise BuildError(f"The source's config.json has an invalid spec of its heads: {error.errors()[0]['msg']}.") from error
    if spec_hash is not None and not resolved.has_hash(spec_hash):
        raise BuildError(
            f"The source's config.json has a spec of hash {resolved.hash}, but its spec_hash is {spec_hash}: one of them was "
            "changed."
        )
    return resolved


def _modules(graph: HeadGraph) -> Iterator[tuple[str, Part, str, str]]:
    """Yield the modules of a head: name, part, and the ``seen`` and ``beside`` of ``Meaning``, of all places of the module."""
    places: dict[str, list[Node]] = {}
    for node in graph.parts:
        if node.path is not None or not (node.main or isinstance(node.part, FeatureMap)):
            places.setdefault(node.module, []).append(node)
    for module, nodes in places.items():
        part = nodes[0].part
        assert part is not None
        seen, beside = (" and ".join(dict.fromkeys(words(graph, node) for node in nodes)) for words in (_steps_before, _beside))
        yield module, part, seen, beside


def _steps_before(graph: HeadGraph, node: Node) -> str:
    """Return the parts that mix, convolve and rotate the states before this node reads them. Memories are not included."""

    def leads(edge: Edge) -> bool:
        is_memory = isinstance(graph.nodes[edge.end].part, Memory)
        return edge.kind in (READ - {Kind.PAIRS} if edge.end == node.name and is_memory else {Kind.PAIRS} if is_memory else READ)

    before = ancestors({node.name}, filter(leads, graph.edges))
    parts = [
        other.part
        for other in graph.parts
        if other.name in before and other.path is not None and not isinstance(other.part, Memory)
    ]
    done = [_describe(part) for part in parts if part is not None]
    position = node.rotation if isinstance(node.part, FeatureMap) else None
    if position is not None and not position.idle:
        done.append(_describe(position))
    return " after ".join(["states", *(f"`{part}`" for part in reversed(done))]) if done else "states as they are"


def _beside(graph: HeadGraph, node: Node) -> str:
    """Return the read that uses a memory's weight, or the map whose features decay one by one."""
    if isinstance(node.part, Memory) and node.part.weight is not None and graph.nodes[READ_NODE].path is not None:
        return _describe_at(graph.nodes[READ_NODE])
    if isinstance(node.part, Gate) and node.part.rank_of_decay == "channel":
        (decay,) = graph.out_of(node.name)
        return " and ".join(_describe_at(graph.nodes[edge.start]) for edge in graph.into(decay.end, "features"))
    return "nothing"


def _describe_at(node: Node) -> str:
    assert node.part is not None
    return _describe(node.part)


def _describe(part: Part) -> str:
    """Return a part in words, ``exp, skip: true``: its fields that are neither defaults nor incidental."""
    says = {name: value for name, value in meaning(part).items() if name not in part.incidental}
    return ", ".join([str(says.pop("kind")), *(f"{name}: {format_value(value)}" for name, value in sorted(says.items()))])
