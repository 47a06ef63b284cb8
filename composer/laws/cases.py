"""The subjects of the laws: a head for every part in the catalogue, and the inputs of a call.

Nothing here names a part, except those around the part that is tested.
"""
# Tensors of a call are unpacked into its inputs.
# pyright: reportCallIssue=false, reportAttributeAccessIssue=false

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import torch

from blocks.catalogue import CATALOGUE
from blocks.flow import Tokens
from blocks.legend import Shape
from blocks.memories.base import Memory
from blocks.operation import Kind, State
from blocks.part import Part
from blocks.registry import kind_of
from blocks.scores.random import Random
from composer.errors import GraphError
from composer.graph.composition import HeadSpec
from composer.graph.program import HeadInputs
from composer.model.head import Head
from composer.spec.loading import load_spec
from composer.spec.resolve import Dimensions, resolve

FIELDS = {"convolution": "conv", "score": "keep"}
"""Roles that a head calls otherwise."""
SMALL = Dimensions(hidden_size=24, layers=3, heads=4, key_heads=2, head_dim=8, rope_theta=100.0)
SHAPES = {
    "grouped": SMALL.shape(4),
    "one key head": Shape(hidden_size=24, heads=3, key_heads=1, head_dim=8),
    "no sharing": Shape(hidden_size=16, heads=2, key_heads=2, head_dim=8),
    "short values": Shape(hidden_size=24, heads=4, key_heads=2, head_dim=8, value_dim=6),
}


def complete(head: Mapping[str, Any], size: Dimensions = SMALL) -> HeadSpec:
    """Return a head, resolved. Raises GraphError if it cannot mean anything."""
    spec = load_spec({"compose": 1, "name": "case", "head": dict(head)})
    return resolve(spec, size).heads["head"]


def around(role: str, kind: str) -> dict[str, Any]:
    """Return a head in which this part does some work: a window above a state, with everything else at its plainest."""
    head: dict[str, Any] = {
        "position": "rope",
        "feature_map": "elu",
        "memory": [{"kind": "window", "size": 5, "weight": "learned"}, {"kind": "state"}],
    }
    if role == "memory":
        return {"position": "rope", **_head_with(kind)}
    field = FIELDS.get(role, role)
    holders = [name for name, part in CATALOGUE["memory"].items() if field in part.model_fields.keys() - Memory.model_fields.keys()]
    if holders:
        holders.sort(key=lambda name: getattr(CATALOGUE["memory"][name], "grows"))  # noqa: B009 - those after the first
        return {"position": "rope", **_head_with(holders[0], **{field: kind})}
    if role == "mix_input":
        head["memory"][0]["weight"] = "token"
    if role == "feature_map" and not CATALOGUE["feature map"][kind].positive:
        head["memory"] = [{"kind": "window", "size": 5}, {"kind": "state", "normalise": False}]
        head["read"] = "sum"
    return head | {field: {"kind": kind}}


def _head_with(kind: str, **fields: Any) -> dict[str, Any]:
    """Return a head of one memory; if it cannot be the only one, with a window above it and a state below."""
    part = CATALOGUE["memory"][kind]
    assert issubclass(part, Memory)
    memory = {"kind": kind, **fields} | ({"size": 5} if part.bounded else {"size": 12} if "size" in part.model_fields else {})
    features = {"feature_map": "hedgehog"}
    try:
        head = {"memory": [memory | ({"evict": "drop"} if part.bounded else {})]}
        head |= features if part.reads is Kind.FEATURES else {}
        complete(head)
    except GraphError:
        return {"memory": [{"kind": "window", "size": 5}, memory, "state"], **features}
    return head


def heads_of(parts: Iterable[type[Part]]) -> dict[str, HeadSpec]:
    """Return one head for each part, and one for each bounded memory above a state."""
    words = [(part.role, kind_of(part)) for part in parts]
    heads = {f"{role}: {kind}": complete(around(_field(role), kind)) for role, kind in words}
    memories = [kind for role, kind in words if role == "memory" and _drops_alone(kind)]
    return heads | {f"memory: {kind} above a state": complete(_above_a_state(kind)) for kind in memories}


def _drops_alone(kind: str) -> bool:
    """Whether a memory is bounded and can be the only one, so that nothing else has received its pairs."""
    return _head_with(kind)["memory"][0].get("evict") == "drop"


def _above_a_state(kind: str) -> dict[str, Any]:
    """Return a head in which the memory evicts into a state, whose feature map reads convolved keys."""
    memory = {"kind": kind, "size": 5}
    return {"position": "rope", "conv": "causal", "feature_map": "hedgehog", "memory": [memory, "state"]}


def _field(role: str) -> str:
    return role.replace(" ", "_")


def once(law: Callable[..., None]) -> Callable[..., None]:
    """Skip a law that has held for the same head before, which may exist under several names. A law that has failed is tested
    again."""
    return functools.cache(law)


def steady(spec: HeadSpec) -> HeadSpec:
    """Return the same head without choices that depend on rounding: a sparse cache keeps pairs at random."""
    chance = {"keep": Random()}
    memories = [memory.model_copy(update=chance) if "keep" in type(memory).model_fields else memory for memory in spec.memory]
    return spec.model_copy(update={"memory": tuple(memories)})


def coarse(spec: HeadSpec) -> HeadSpec:
    """Return the same head with windows that move by whole chunks of many tokens, if the memory below evicts one group after the
    other."""
    if not any("keep" in type(memory).model_fields for memory in spec.memory):
        return spec
    chunks = {"shape": "terraced", "size": 128}
    memories = [memory.model_copy(update=chunks) if "shape" in type(memory).model_fields else memory for memory in spec.memory]
    return spec.model_copy(update={"memory": tuple(memories)})


@dataclass
class Inputs:
    """The inputs of one call; ``cut`` returns some of its columns."""

    hidden: torch.Tensor
    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    tokens: Tokens

    @property
    def tensors(self) -> tuple[torch.Tensor, ...]:
        return self.hidden, self.query, self.key, self.value

    def cut(self, columns: slice) -> Inputs:
        tokens = self.tokens
        segment = tokens.segment
        if segment is not None:
            before = segment[:, columns.start - 1 : columns.start] if columns.start else torch.zeros_like(segment[:, :1])
            segment = segment[:, columns] - before
        valid, index = (None if entries is None else entries[:, columns] for entries in (tokens.valid, tokens.index))
        cut = Tokens(tokens.position[:, columns], segment, valid, index)
        return Inputs(*(tensor[:, columns] for tensor in self.tensors), cut)

    def of_head(self) -> HeadInputs:
        """Return the same, as a head receives them."""
        return HeadInputs(self.hidden, self.query, self.key, self.value, self.tokens)

    def to(self, dtype: torch.dtype) -> Inputs:
        return Inputs(*(tensor.to(dtype) for tensor in self.tensors), self.tokens)


def inputs(shape: Shape, batch: int, length: int, *, seed: int = 0, scale: float = 1.0) -> Inputs:
    """Normal numbers in float64, at positions from 0."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*size: int) -> torch.Tensor:
        return torch.randn(batch, length, *size, generator=generator, dtype=torch.float64)

    position = torch.arange(length).repeat(batch, 1)
    return Inputs(
        normal(shape.hidden_size),
        normal(shape.heads, shape.head_dim) * scale,
        normal(shape.key_heads, shape.head_dim) * scale,
        normal(shape.key_heads, shape.value_dim),
        Tokens(position),
    )


def build_head(spec: HeadSpec, shape: Shape, *, seed: int = 1, noise: float = 0.3) -> Head:
    """Return the head in float64, its parameters near their start but not at it; frozen, as most laws need no gradients."""
    head = Head(spec, shape).double()
    generator = torch.Generator().manual_seed(seed)
    for module in head.modules():
        if hasattr(module, "fill"):
            module.fill(generator)
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.add_(noise * torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    return head.requires_grad_(False)


def run(
    head: Head, data: Inputs, state: State | None = None, backend: str = "auto", sinks: torch.Tensor | None = None
) -> tuple[torch.Tensor, State]:
    """Return the output and the new state of one call, from an empty state unless another is given. Queries and keys of mixed
    inputs are projected as in a layer. sinks: the logits of attention sinks, H."""
    if state is None:
        state = head.empty_state(data.query.shape[0], data.query.dtype, data.query.device)
    mixed, before = head.mix(data.hidden, data.tokens, state, backend)
    query, key = data.query, data.key
    if head._mixes:
        query, key = (_move(states, mixed - data.hidden) for states in (query, key))
    output, after = head(replace(data.of_head(), query=query, key=key, sinks=sinks), state, backend)
    return output, before | after


def _move(states: torch.Tensor, difference: torch.Tensor) -> torch.Tensor:
    """Queries or keys, as if their projection had seen another hidden state."""
    wide = states.shape[2] * states.shape[3]
    generator = torch.Generator().manual_seed(wide)
    projection = torch.randn(difference.shape[-1], wide, generator=generator, dtype=torch.float64) / difference.shape[-1] ** 0.5
    return states + (difference @ projection.to(difference.dtype)).view_as(states)


def pieces(length: int, bounds: tuple[int, ...]) -> list[slice]:
    """Return the slices between these bounds, from 0 to ``length``."""
    edges = sorted({0, length, *(bound for bound in bounds if 0 < bound < length)})
    return [slice(start, end) for start, end in pairwise(edges)]
