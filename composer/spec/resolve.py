"""A spec meets a source model and becomes a complete document: layer by layer, every default and dimension written out.

The hash of that document is what the spec *means*: names, papers and recipe are left out of it, and defaults, which never change
within a version. The same heads have the same hash whatever they are called, in whatever order they were written and through
whatever chain of ``extends``. A resolved spec also declares its fresh parameters, before anything is built.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from typing import Any, Literal, Self

from pydantic import BaseModel, Field, model_validator

from blocks.legend import Shape
from blocks.operation import Kind
from blocks.part import Closed, FieldPath, Fresh, Part
from blocks.positions import NoPosition
from blocks.reads import Shared
from composer.errors import GraphError
from composer.graph.composition import ALL, HeadSpec, sources_of_pairs, without_names
from composer.graph.graph import HeadGraph
from composer.graph.rules import RESERVED, check_graph
from composer.graph.wiring import build_graph
from composer.reporting.words import ranges
from composer.spec.dimensions import Dimensions
from composer.spec.document import Name, Spec
from composer.spec.layer_rules import SOURCE, Group, find_unused_heads, key_heads_of, layers_of, names_in
from composer.spec.recipe import Recipe
from composer.spec.sweep import refuse_sweep
from composer.spec.trunk import TrunkSpec

NO_SIZES = {"rope_theta", "rope_scaling", "attention", "cached", "sees_ahead"}
"""Fields left out of the hash: resolving has copied them into positions and parameter names, or no head depends on them."""

Kinds = dict[tuple[str, int], tuple[HeadSpec, Shape, list[int]]]
"""Groups of heads that are alike, by head and number of its heads: head, shape, layers."""


class Resolved(Closed):
    """A complete spec. ``heads`` are complete; ``layers`` has the heads of each layer."""

    compose: Literal[1]
    name: str
    paper: str | None = None
    dimensions: Dimensions
    direction: Literal["causal", "bidirectional"] = Field(default="causal", exclude_if=lambda value: value == "causal")
    heads: dict[Name, HeadSpec]
    layers: tuple[tuple[Group, ...], ...]
    trunk: TrunkSpec | None = Field(default=None, exclude_if=lambda trunk: trunk is None)
    """Complete, too; only if the spec has its own trunk."""
    recipe: Recipe | None = Field(default=None)

    @model_validator(mode="after")
    def _check_values(self) -> Self:
        _check_layers(self)
        return self

    @property
    def hash(self) -> str:
        """SHA-256 of the canonical JSON of what it means, in hexadecimal."""
        return self._hash({name: without_names(head) for name, head in self.heads.items()})

    def has_hash(self, digest: str | None) -> bool:
        """Whether this is its hash, or was before edges were compared without the names of memories."""
        return digest in (self.hash, self._hash(self.heads))

    def _hash(self, complete: Mapping[str, HeadSpec]) -> str:
        heads = {name: meaning(head) for name, head in complete.items()}
        layers = [[_meaning_of_group(group, heads[group.head]) for group in layer] for layer in self.layers]
        size = self.dimensions.model_dump(mode="json", exclude=NO_SIZES)
        content = {"compose": self.compose, "dimensions": size, "layers": layers}
        if self.direction != "causal":
            content["direction"] = self.direction
        if self.trunk is not None:
            # Its theta is now part of the positions that rotate by it.
            content["trunk"] = {name: value for name, value in meaning(self.trunk).items() if name != "theta"}
        text = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
        return hashlib.sha256(text.encode()).hexdigest()

    def groups(self) -> Iterator[tuple[int, Group, HeadSpec, Shape]]:
        """Yield every group of every layer: layer, group, its head, its shape."""
        for index, layer in enumerate(self.layers):
            for group in layer:
                yield index, group, self.heads[group.head], self.shape(group.heads)

    def kinds(self) -> Kinds:
        """Return every kind of group there is, in the order of the layers."""
        kinds: Kinds = {}
        for layer, group, head, shape in self.groups():
            kinds.setdefault((group.head, group.heads), (head, shape, []))[2].append(layer)
        return kinds

    def shape(self, heads: int) -> Shape:
        """Return the shape of a group of ``heads`` query heads."""
        return replace(self.dimensions.shape(heads), both_ways=self.direction == "bidirectional")


def _check_layers(resolved: Resolved) -> None:
    """Raise ValueError unless the groups of each layer divide its heads, and all fields of memories are set."""
    size = resolved.dimensions
    if len(resolved.layers) != size.layers:
        raise ValueError(f"has heads for {len(resolved.layers):,} layers, and the model has {size.layers:,}")
    without = set(size.without_attention)
    if any(bool(groups) == (layer in without) for layer, groups in enumerate(resolved.layers)):
        raise ValueError("has heads for a layer without attention, or none for a layer with attention")
    for layer in set(resolved.layers) - {()}:
        if unknown := [group.head for group in layer if group.head not in resolved.heads]:
            raise ValueError(f"has no head {unknown[0]}, which a layer names")
        if any(group.heads * size.key_heads != group.key_heads * size.heads for group in layer):
            raise ValueError("has a group of heads that splits a group of key heads")
        if any(group.numbers is not None and len(group.numbers) != group.key_heads for group in layer):
            raise ValueError("has a group of heads with more or fewer numbers than key heads")
        numbers = [number for group_numbers in key_heads_of(layer) for number in group_numbers]
        if sorted(numbers) != list(range(size.key_heads)) or len({group.head for group in layer}) < len(layer):
            raise ValueError("has a layer whose groups are not its heads")
    if any(memory.name is None or memory.position is None for head in resolved.heads.values() for memory in head.memory):
        raise ValueError("has a memory that leaves its name or its position open")


def _meaning_of_group(group: Group, head: Any) -> dict[str, Any]:
    numbers = {} if group.numbers is None else {"numbers": group.numbers}
    return {"heads": group.heads, "head": head, **numbers}


def heads_of(spec: Spec) -> dict[str, HeadSpec]:
    """Return the heads of a spec by name: ``head:`` is called head, and ``source`` is the source's own attention where layers name
    it.

    Raises GraphError if another head is called head, too.
    """
    heads = dict(spec.heads)
    if spec.head is not None:
        if "head" in heads:
            raise GraphError("`head:` already has the name head; choose another name for this one", ("heads", "head"))
        heads["head"] = spec.head
    if SOURCE not in heads and any(SOURCE in names_in(rule.use) for rule in spec.layers):
        heads[SOURCE] = HeadSpec.model_validate({"memory": ("full",)})
    return heads


def resolve(spec: Spec, source: Dimensions | None = None, *, idle: bool = False) -> Resolved:
    """Write out everything that ``spec`` leaves to its source, or, where there is none, to the spec's own trunk.

    idle: accept parts without an effect, as ``check_graph`` does. Raises GraphError if the result cannot mean anything.
    """
    refuse_sweep(spec)
    dimensions, trunk = dimensions_and_trunk(spec, source)
    heads = heads_of(spec)
    layers = layers_of(spec, dimensions, heads)
    used: dict[str, set[int]] = {}
    for layer in set(layers):
        for group in layer:
            used.setdefault(group.head, set()).add(group.heads)
    complete: dict[str, HeadSpec] = {}
    for name, head in heads.items():
        path: FieldPath = ("head",) if name == "head" and spec.head is not None else ("heads", name)
        if name not in used:
            if path == ("head",):
                # The default of a source whose layers are all named: a spec for deeper models is also valid on a shallow one.
                continue
            raise next(find_unused_heads(spec, used, dimensions.layers))
        if name in RESERVED:
            raise reserved_name_error(name, path)
        complete[name] = complete_head(head, dimensions)
        if trunk is not None and spec.trunk is not None:
            refuse_odd(complete[name], trunk, spec.trunk)
        for size in sorted(used[name]):
            shape = replace(dimensions.shape(size), both_ways=spec.direction == "bidirectional")
            check_graph(complete[name], shape, path, idle=idle)
    return Resolved(
        compose=spec.compose,
        name=spec.name,
        paper=spec.paper,
        dimensions=dimensions,
        direction=spec.direction,
        heads=complete,
        layers=layers,
        trunk=trunk,
        recipe=spec.recipe,
    )


def dimensions_and_trunk(spec: Spec, source: Dimensions | None) -> tuple[Dimensions, TrunkSpec | None]:
    """Return the source's, or those of the spec's own trunk, with that trunk complete."""
    if spec.trunk is None:
        if source is None:
            raise GraphError(
                "this spec has no `trunk` to build from random weights: add one (width, layers, heads, vocabulary), or name a "
                "source (--from SOURCE)"
            )
        _check_lock(spec, source)
        return source, None
    if source is not None:
        raise GraphError(
            "this spec has its own trunk, which the source's would contradict: build it from nothing (--fresh, without a "
            "source), or remove the trunk (--set trunk=null)",
            ("trunk",),
        )
    trunk = spec.trunk.complete()
    assert trunk.key_heads is not None
    assert trunk.head_dim is not None
    dimensions = Dimensions(
        hidden_size=trunk.width,
        layers=trunk.layers,
        heads=trunk.heads,
        key_heads=trunk.key_heads,
        head_dim=trunk.head_dim,
        rope_theta=trunk.theta,
    )
    _check_lock(spec, dimensions)
    return dimensions, trunk


def reserved_name_error(name: str, path: FieldPath) -> GraphError:
    return GraphError(f'PyTorch\'s modules have an attribute "{name}"; choose another name for this head', path)


def _check_lock(spec: Spec, size: Dimensions) -> None:
    """Raise GraphError if a spec has the sizes of another source."""
    if spec.dimensions is None:
        return
    lacks_values = spec.dimensions.value_dim is None and size.value_dim is None
    wanted, actual = (
        sizes.model_dump(exclude={*NO_SIZES, "without_attention"}) | ({} if lacks_values else {"value_dim": sizes.size_of_values})
        for sizes in (spec.dimensions, size)
    )
    other = [f"{name} {count:,} (here {actual[name]:,})" for name, count in wanted.items() if count != actual[name]]
    if spec.dimensions.without_attention != size.without_attention:
        pairs = (sizes.without_attention for sizes in (spec.dimensions, size))
        other.append(
            "without attention in {} (here {})".format(*(f"layers {ranges(some)}" if some else "no layer" for some in pairs))
        )
    if other:
        raise GraphError(
            f"this spec was resolved for a model of {', '.join(other)}. Resolve the original spec on this model, or remove the "
            "sizes: --set dimensions=null",
            ("dimensions",),
        )


def refuse_odd(head: HeadSpec, trunk: TrunkSpec, written: TrunkSpec) -> None:
    """Raise GraphError if positions rotate pairs of coordinates, and the trunk's heads have an odd number of them. written: the
    trunk before its sizes are completed."""
    odd = Shape(hidden_size=1, heads=1, key_heads=1, head_dim=1)
    rotated = head.value_position is not None or any(memory.rotation.misfit(odd) for memory in head.memory)
    if rotated and trunk.head_dim and trunk.head_dim % 2:
        key = "width" if written.head_dim is None else "head_dim"
        remedy = "choose another `width`, or set an even `head_dim`" if written.head_dim is None else "make it even"
        raise GraphError(
            f"positions rotate pairs of coordinates, and heads of this trunk have {trunk.head_dim}, an odd number; {remedy}, or, "
            "in the head, "
            "`position: none`" + (" and no `value_position`" if head.value_position is not None else ""),
            ("trunk", key),
        )


def complete_head(head: HeadSpec, dimensions: Dimensions | None) -> HeadSpec:
    """Return the head with every default that depends on its place or on the source written out; without a source, those are
    left."""
    last, feeds = len(head.memory) - 1, sources_of_pairs(head)
    memories = []
    for memory in head.memory:
        # Latents have no queries and keys to rotate.
        position = NoPosition() if memory.reads is Kind.HIDDEN else memory.position or head.position
        if dimensions:
            position = position.on(dimensions.rope_theta, dimensions.rope_scaling)
        changes: dict[str, Any] = {"position": position, "name": memory.called}
        # Evicted pairs may be dropped if another memory sees every pair and keeps it.
        beside = [other for other in head.memory if feeds.get(other.called, ALL) == ALL]
        has_every_pair = memory in beside and changes["name"] not in feeds.values()
        lost = memory.bounded and has_every_pair and not all(other.bounded for other in beside)
        memories.append((memory.dropping() if lost else memory).model_copy(update=changes))
    read, features = head.read, head.feature_map
    if features and dimensions:
        features = features.with_dim(dimensions.shape(dimensions.heads))
    read = read.over([memory.has_mass() for memory in memories]) if read else read
    return head.model_copy(
        update={
            # Each memory has its own by now.
            "position": NoPosition(),
            "feature_map": features,
            "memory": tuple(memories),
            "read": None if last == 0 else read or Shared(),
        }
    )


def meaning(value: Any) -> Any:
    """Return the fields of a schema that are not at their defaults, without names. So a new field of a part changes no older
    hash."""
    if isinstance(value, BaseModel):
        defaults = _defaults(type(value))
        set_fields = {name: item for name, item in value if name == "kind" or (name != "name" and item != defaults[name])}
        return {name: meaning(item) for name, item in set_fields.items()}
    return [meaning(item) for item in value] if isinstance(value, tuple) else value


@cache
def _defaults(schema: type[BaseModel]) -> dict[str, Any]:
    """Return the defaults of a frozen schema's fields, by name."""
    return {name: field.get_default(call_default_factory=True) for name, field in schema.model_fields.items()}


def prefix(resolved: Resolved, layer: int, head: str) -> str:
    """Return the prefix of the names of a head's fresh parameters: ``model.layers.0.self_attn.composed.<head>.``."""
    return f"{resolved.dimensions.attention.format(layer=layer)}.composed.{head}."


def modules(head: HeadSpec, shape: Shape) -> Iterator[tuple[str, Part, Shape]]:
    """Yield the parts of a head that have parameters, each once: module name, part, shape."""
    seen = set()
    for node in build_graph(head, shape).parts:
        if node.part is not None and node.module not in seen and node.part.parameters(node.shape):
            yield node.module, node.part, node.shape
        seen.add(node.module)


def head_parameters(head: HeadSpec, shape: Shape) -> dict[str, Fresh]:
    """Return the fresh parameters of one group of heads, called ``<module>.<tensor>``."""
    return {
        f"{module}.{name}": fresh
        for module, part, part_shape in modules(head, shape)
        for name, fresh in part.parameters(part_shape).items()
    }


def fresh_parameters(resolved: Resolved) -> dict[str, Fresh]:
    """Return all fresh parameters, by their full names: ``model.layers.0.self_attn.composed.<head>.<module>.<tensor>``."""
    return {
        prefix(resolved, layer, group.head) + name: fresh
        for layer, group, head, shape in resolved.groups()
        for name, fresh in head_parameters(head, shape).items()
    }


def graphs_of(*models: Resolved) -> Iterator[HeadGraph]:
    """Return the graph of every head of some models, as often as layers have it."""
    return (build_graph(head, shape) for resolved in models for _, _, head, shape in resolved.groups())
