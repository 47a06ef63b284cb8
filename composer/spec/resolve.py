"""A spec meets a source model and becomes a complete document: layer by layer, every default and dimension written out.

The hash of that document is what the spec *means*: names, papers and recipe are left out of it, and defaults, which never change
within a version. The same heads have the same hash whatever they are called, in whatever order they were written and through
whatever chain of ``extends``.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from fractions import Fraction
from functools import cache
from typing import Any, Literal, Self

from pydantic import BaseModel, Field, PositiveInt, model_validator

from blocks.legend import Shape
from blocks.operation import Kind
from blocks.part import Closed
from blocks.positions import NoPosition
from blocks.reads import Shared
from composer.errors import GraphError, Path
from composer.graph.composition import HeadSpec
from composer.graph.flow_of_pairs import ALL, sources_of_pairs
from composer.graph.rules import RESERVED, checked_graph
from composer.spec.dimensions import Dimensions
from composer.spec.document import HeadsOf, Name, Spec
from composer.spec.layers import check_layers
from composer.spec.recipe import Recipe
from composer.spec.sweep import refuse_sweep
from composer.spec.trunk import TrunkSpec

SOURCE = "source"
"""What layers use that are to stay as the source has them: softmax, under all that the model around it asks for."""


class Group(Closed):
    """Consecutive heads of one layer that are composed alike."""

    head: Name
    heads: PositiveInt
    key_heads: PositiveInt


class Resolved(Closed):
    """A spec with nothing left open. ``heads`` are complete; ``layers`` says which of them each layer has."""

    compose: Literal[1]
    name: str
    paper: str | None = None
    dimensions: Dimensions
    direction: Literal["causal", "bidirectional"] = Field(default="causal", exclude_if=lambda said: said == "causal")
    heads: dict[Name, HeadSpec]
    layers: tuple[tuple[Group, ...], ...]
    trunk: TrunkSpec | None = Field(default=None, exclude_if=lambda trunk: trunk is None)
    """Complete, too; only where the spec has one of its own."""
    recipe: Recipe | None = Field(default=None)

    @model_validator(mode="after")
    def _whole(self) -> Self:
        check_layers(self)
        return self

    @property
    def hash(self) -> str:
        """SHA-256 of the canonical JSON of what it means, in hexadecimal."""
        heads = {name: meaning(head) for name, head in self.heads.items()}
        layers = [[{"heads": group.heads, "head": heads[group.head]} for group in layer] for layer in self.layers]
        size = self.dimensions.model_dump(mode="json", exclude={"rope_theta", "rope_scaling", "attention"})
        whole = {"compose": self.compose, "dimensions": size, "layers": layers}
        if self.direction != "causal":
            whole["direction"] = self.direction
        if self.trunk is not None:
            # Its theta has gone into the positions that turn by it.
            whole["trunk"] = {name: said for name, said in meaning(self.trunk).items() if name != "theta"}
        text = json.dumps(whole, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
        return hashlib.sha256(text.encode()).hexdigest()

    def groups(self) -> Iterator[tuple[int, Group, HeadSpec, Shape]]:
        """Every group of every layer: layer, group, its head, its shape."""
        for index, layer in enumerate(self.layers):
            for group in layer:
                yield index, group, self.heads[group.head], self.shape(group.heads)

    def shape(self, heads: int) -> Shape:
        """The shape of a group of ``heads`` query heads."""
        return replace(self.dimensions.shape(heads), both_ways=self.direction == "bidirectional")


def heads_of(spec: Spec) -> dict[str, HeadSpec]:
    """By name: ``head:`` is called head, and ``source`` is the source's own attention where layers name it.

    Raises GraphError where another head is called head, too.
    """
    heads = dict(spec.heads)
    if spec.head is not None:
        if "head" in heads:
            raise GraphError("`head:` is itself called head; give this one another name", ("heads", "head"))
        heads["head"] = spec.head
    if SOURCE not in heads and any(SOURCE in _named(rule.use) for rule in spec.layers):
        heads[SOURCE] = HeadSpec.model_validate({"memory": ("full",)})
    return heads


def resolve(spec: Spec, source: Dimensions | None = None) -> Resolved:
    """Write out everything that ``spec`` leaves to its source, or, where there is none, to the trunk of its own.

    Raises GraphError where the result cannot mean anything.
    """
    refuse_sweep(spec)
    dimensions, trunk = _dimensions(spec, source)
    heads = heads_of(spec)
    layers = _layers(spec, dimensions, heads)
    used = {group.head for layer in layers for group in layer}
    complete: dict[str, HeadSpec] = {}
    for name, head in heads.items():
        path: Path = ("head",) if name == "head" and spec.head is not None else ("heads", name)
        if name not in used:
            if path == ("head",):
                # The default of a source whose layers are all named: a spec for deeper models stays right on a shallow one.
                continue
            raise GraphError("no layer uses this head; remove it, or name it in `layers`", path)
        if name in RESERVED:
            raise GraphError(f'PyTorch\'s modules have a "{name}" of their own; give this head another name', path)
        complete[name] = complete_head(head, dimensions)
        if trunk is not None and spec.trunk is not None:
            _refuse_odd(complete[name], trunk, spec.trunk)
        for size in sorted({group.heads for layer in layers for group in layer if group.head == name}):
            shape = replace(dimensions.shape(size), both_ways=spec.direction == "bidirectional")
            checked_graph(complete[name], shape, path)
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


def _dimensions(spec: Spec, source: Dimensions | None) -> tuple[Dimensions, TrunkSpec | None]:
    """The source's, or those of the spec's own trunk, with that trunk complete."""
    if spec.trunk is None:
        if source is None:
            raise GraphError(
                "this spec has no `trunk` that would say what to build from nothing: add one (width, layers, heads, vocabulary), "
                "or name a source (--from SOURCE)"
            )
        return source, None
    if source is not None:
        raise GraphError(
            "this spec has a trunk of its own, which the source's would contradict: build it from nothing (--fresh, without a "
            "source), or remove the trunk (--set trunk=null)",
            ("trunk",),
        )
    trunk = spec.trunk.complete()
    assert trunk.key_heads is not None
    assert trunk.head_dim is not None
    own = Dimensions(
        hidden_size=trunk.width,
        layers=trunk.layers,
        heads=trunk.heads,
        key_heads=trunk.key_heads,
        head_dim=trunk.head_dim,
        rope_theta=trunk.theta,
    )
    return own, trunk


def _refuse_odd(head: HeadSpec, trunk: TrunkSpec, said: TrunkSpec) -> None:
    """Where positions turn pairs of coordinates, it is the trunk that has to have an even number of them. said: as written."""
    odd = Shape(hidden_size=1, heads=1, key_heads=1, head_dim=1)
    turned = head.value_position is not None or any(memory.turn.problem(odd) for memory in head.memory)
    if turned and trunk.head_dim and trunk.head_dim % 2:
        key = "width" if said.head_dim is None else "head_dim"
        remedy = "choose another `width`, or say an even `head_dim`" if said.head_dim is None else "make it even"
        raise GraphError(
            f"positions turn pairs of coordinates, and heads of this trunk have {trunk.head_dim}; {remedy}, or, in the head, "
            "`position: none`" + (" and no `value_position`" if head.value_position is not None else ""),
            ("trunk", key),
        )


def complete_head(head: HeadSpec, dimensions: Dimensions | None) -> HeadSpec:
    """The head with every default that depends on its place or on the source written out; without a source, those are left."""
    last, feeds = len(head.memory) - 1, sources_of_pairs(head)
    memories = []
    for memory in head.memory:
        # Latents have no queries and keys that could be turned.
        position = NoPosition() if memory.reads is Kind.HIDDEN else memory.position or head.position
        if dimensions:
            position = position.on(dimensions.rope_theta, dimensions.rope_scaling)
        changes: dict[str, Any] = {"position": position, "name": memory.called}
        # Beside memories that get every pair, too, nothing need receive what this one evicts, as long as one of them keeps all.
        beside = [other for other in head.memory if feeds.get(other.called, ALL) == ALL]
        alone = memory in beside and changes["name"] not in feeds.values()
        lost = memory.bounded and alone and not all(other.bounded for other in beside)
        memories.append((memory.dropping() if lost else memory).model_copy(update=changes))
    read, features = head.read, head.feature_map
    if features and dimensions:
        features = features.resolved(dimensions.shape(dimensions.heads))
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


def _layers(spec: Spec, dimensions: Dimensions, heads: Mapping[str, HeadSpec]) -> tuple[tuple[Group, ...], ...]:
    """Which heads each layer has: ``head`` where no rule says otherwise, then the rules in order."""
    every = _groups("head", dimensions, heads, ("layers",)) if spec.head is not None else None
    chosen: list[tuple[Group, ...] | None] = [every] * dimensions.layers
    for number, rule in enumerate(spec.layers):
        named = _at(rule.at, dimensions.layers, ("layers", number, "at"))
        if not named:
            raise GraphError(f"this names none of the model's {dimensions.layers} layers", ("layers", number, "at"))
        groups = _groups(rule.use, dimensions, heads, ("layers", number, "use"))
        for layer in named:
            chosen[layer] = groups
    if None in chosen:
        layer = chosen.index(None)
        raise GraphError(f"layer {layer} has no head: add a rule for it, or a `head:` for all that no rule names", ("layers",))
    return tuple(groups for groups in chosen if groups is not None)


def _named(use: str | tuple[HeadsOf, ...]) -> set[str]:
    return {use} if isinstance(use, str) else {group.head for group in use}


def _at(at: int | tuple[int, ...] | str, layers: int, path: Path) -> list[int]:
    if isinstance(at, str):
        if at == "all":
            return list(range(layers))
        start, end, step = ([int(text) if text else None for text in at.split(":")] + [None])[:3]
        if step == 0:
            raise GraphError("a step of 0 never arrives", path)
        return list(range(layers))[start:end:step]
    numbers = (at,) if isinstance(at, int) else at
    for number in numbers:
        if not -layers <= number < layers:
            raise GraphError(f"layer {number} is not there: the model has {layers} layers, {-layers} to {layers - 1}", path)
    return [number % layers for number in numbers]


def _groups(use: str | tuple[HeadsOf, ...], dimensions: Dimensions, heads: Mapping[str, HeadSpec], path: Path) -> tuple[Group, ...]:
    taken = (HeadsOf(head=use, heads=dimensions.heads),) if isinstance(use, str) else use
    for group in taken:
        if group.head not in heads:
            raise GraphError(f'there is no head "{group.head}"; there are: {", ".join(heads) or "none"}', path)
    per_key = dimensions.heads // dimensions.key_heads
    counts = {group.head: _count(group, dimensions.heads, per_key, path) for group in taken}
    if len(counts) < len(taken):
        raise GraphError("names a head twice: give all its query heads to one group", path)
    if sum(counts.values()) != dimensions.heads:
        raise GraphError(
            f"these groups have {sum(counts.values())} query heads together, and the layer has {dimensions.heads}", path
        )
    return tuple(Group(head=name, heads=count, key_heads=count // per_key) for name, count in counts.items())


def _count(group: HeadsOf, heads: int, per_key: int, path: Path) -> int:
    """The query heads of a group, out of ``heads`` of which ``per_key`` share each key head."""
    whole = isinstance(group.heads, int)
    count = Fraction(group.heads) if whole else Fraction(group.heads) * heads
    if count % per_key:
        said = f"{count} query heads" if whole else f"{group.heads} of {heads} query heads, which is {count}"
        wanted = (
            f"{per_key} of them share each key head: take a multiple of {per_key}" if per_key > 1 else "it can take whole ones only"
        )
        raise GraphError(f'"{group.head}" takes {said}, and {wanted}', path)
    return int(count)


def meaning(value: Any) -> Any:
    """What a schema says beyond its defaults, without names: a field that a part gains later leaves older hashes as they are."""
    if isinstance(value, BaseModel):
        defaults = _defaults(type(value))
        said = {name: item for name, item in value if name == "kind" or (name != "name" and item != defaults[name])}
        return {name: meaning(item) for name, item in said.items()}
    return [meaning(item) for item in value] if isinstance(value, tuple) else value


@cache
def _defaults(schema: type[BaseModel]) -> dict[str, Any]:
    """Of its fields, by name; those of frozen schemas, so that all may share them."""
    return {name: field.get_default(call_default_factory=True) for name, field in schema.model_fields.items()}
