"""A spec meets a source model and becomes a complete document: layer by layer, every default and dimension written out.

The hash of that document is what the spec *means*: names, papers and recipe are left out of it, and defaults, which never change
within a version. The same heads have the same hash whatever they are called, in whatever order they were written and through
whatever chain of ``extends``.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Any, Literal, Self

from pydantic import BaseModel, Field, PositiveInt, model_validator

from blocks.legend import Shape
from blocks.memories.window import Window
from blocks.part import Closed
from blocks.positions import Llama3Scaling, NoPosition, Rope
from blocks.reads import Shared, Sum
from composer.errors import GraphError
from composer.graph.rules import RESERVED, checked_graph
from composer.spec.document import HeadsOf, HeadSpec, Name, Recipe, Spec
from composer.spec.sweep import refuse_sweep

Path = tuple[str | int, ...]


class Dimensions(Closed):
    """What a source model brings to a spec."""

    hidden_size: PositiveInt
    layers: PositiveInt
    heads: PositiveInt
    key_heads: PositiveInt
    head_dim: PositiveInt
    rope_theta: float
    rope_scaling: Llama3Scaling | None = None

    @model_validator(mode="after")
    def _heads_share_evenly(self) -> Self:
        if self.heads % self.key_heads:
            raise ValueError(f"{self.heads} query heads cannot share {self.key_heads} key heads evenly")
        return self

    def shape(self, heads: int) -> Shape:
        """The shape of a group of ``heads`` query heads, which take whole key groups."""
        key_heads = heads * self.key_heads // self.heads
        return Shape(hidden_size=self.hidden_size, heads=heads, key_heads=key_heads, head_dim=self.head_dim)


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
    heads: dict[Name, HeadSpec]
    layers: tuple[tuple[Group, ...], ...]
    recipe: Recipe | None = Field(default=None)

    @property
    def hash(self) -> str:
        """SHA-256 of the canonical JSON of what it means, in hexadecimal."""
        heads = {name: meaning(head) for name, head in self.heads.items()}
        layers = [[{"heads": group.heads, "head": heads[group.head]} for group in layer] for layer in self.layers]
        size = self.dimensions.model_dump(mode="json", exclude={"rope_theta", "rope_scaling"})
        whole = {"compose": self.compose, "dimensions": size, "layers": layers}
        text = json.dumps(whole, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
        return hashlib.sha256(text.encode()).hexdigest()

    def groups(self) -> Iterator[tuple[int, Group, HeadSpec, Shape]]:
        """Every group of every layer: layer, group, its head, its shape."""
        for index, layer in enumerate(self.layers):
            for group in layer:
                yield index, group, self.heads[group.head], self.dimensions.shape(group.heads)


def resolve(spec: Spec, dimensions: Dimensions) -> Resolved:
    """Write out everything that ``spec`` leaves to the source. Raises GraphError where the result cannot mean anything."""
    refuse_sweep(spec)
    heads = dict(spec.heads)
    if spec.head is not None:
        if "head" in heads:
            raise GraphError("`head:` is itself called head; give this one another name", ("heads", "head"))
        heads["head"] = spec.head
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
        for size in sorted({group.heads for layer in layers for group in layer if group.head == name}):
            checked_graph(complete[name], dimensions.shape(size), path)
    return Resolved(
        compose=spec.compose,
        name=spec.name,
        paper=spec.paper,
        dimensions=dimensions,
        heads=complete,
        layers=layers,
        recipe=spec.recipe,
    )


def complete_head(head: HeadSpec, dimensions: Dimensions | None) -> HeadSpec:
    """The head with every default that depends on its place or on the source written out; without a source, those are left."""
    last = len(head.memory) - 1
    memories = []
    for memory in head.memory:
        position = memory.position or head.position
        if dimensions and isinstance(position, Rope) and position.theta is None:
            position = Rope(theta=dimensions.rope_theta, scaling=position.scaling or dimensions.rope_scaling)
        changes: dict[str, Any] = {"position": position, "name": memory.name or memory.kind}
        # Under `parallel` nothing receives what a window evicts, as long as another memory keeps every pair.
        if isinstance(memory, Window) and head.flow == "parallel" and not all(other.bounded for other in head.memory):
            changes["evict"] = "drop"
        memories.append(memory.model_copy(update=changes))
    read, features = head.read, head.feature_map
    if features and dimensions:
        features = features.resolved(dimensions.shape(dimensions.heads))
    if isinstance(read, Sum) and all(memory.has_mass() for memory in memories):
        read = Shared()
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
    chosen: list[str | tuple[HeadsOf, ...] | None] = ["head" if spec.head is not None else None] * dimensions.layers
    for number, rule in enumerate(spec.layers):
        named = _at(rule.at, dimensions.layers, ("layers", number, "at"))
        if not named:
            raise GraphError(f"this names none of the source's {dimensions.layers} layers", ("layers", number, "at"))
        _groups(rule.use, dimensions, heads, ("layers", number, "use"))
        for layer in named:
            chosen[layer] = rule.use
    groups = []
    for layer, use in enumerate(chosen):
        if use is None:
            raise GraphError(f"layer {layer} has no head: add a rule for it, or a `head:` for all that no rule names", ("layers",))
        groups.append(_groups(use, dimensions, heads, ("layers",)))
    return tuple(groups)


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
            raise GraphError(f"layer {number} is not there: the source has {layers} layers, {-layers} to {layers - 1}", path)
    return [number % layers for number in numbers]


def _groups(use: str | tuple[HeadsOf, ...], dimensions: Dimensions, heads: Mapping[str, HeadSpec], path: Path) -> tuple[Group, ...]:
    taken = (HeadsOf(head=use, heads=dimensions.heads),) if isinstance(use, str) else use
    counts = {group.head: group.heads for group in taken}
    if len(counts) < len(taken):
        raise GraphError("names a head twice: give all its query heads to one group", path)
    per_key = dimensions.heads // dimensions.key_heads
    for name, count in counts.items():
        if name not in heads:
            raise GraphError(f'there is no head "{name}"; there are: {", ".join(heads) or "none"}', path)
        if count % per_key:
            raise GraphError(
                f'"{name}" takes {count} query heads, and {per_key} of them share each key head: take a multiple of {per_key}', path
            )
    if sum(counts.values()) != dimensions.heads:
        raise GraphError(
            f"these groups have {sum(counts.values())} query heads together, and the layer has {dimensions.heads}", path
        )
    return tuple(Group(head=name, heads=count, key_heads=count // per_key) for name, count in counts.items())


def meaning(value: Any) -> Any:
    """What a schema says beyond its defaults, without names: a field that a part gains later leaves older hashes as they are."""
    if isinstance(value, BaseModel):
        fields = type(value).model_fields
        said = {
            name: item
            for name, item in value
            if name == "kind" or (name != "name" and item != fields[name].get_default(call_default_factory=True))
        }
        return {name: meaning(item) for name, item in said.items()}
    return [meaning(item) for item in value] if isinstance(value, tuple) else value
