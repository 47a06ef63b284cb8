"""What the laws run over: a head for every part in the catalogue, every head of every shipped spec, and random heads.

Nothing here names a part. A part that enters the catalogue is drawn with every value of its fields from that day on.
"""

from __future__ import annotations

import types
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import annotated_types
import torch
from hypothesis import strategies as st
from pydantic import BaseModel

from blocks.catalogue import CATALOGUE
from blocks.flow import Tokens
from blocks.legend import Shape
from blocks.memories.base import Memory
from blocks.part import State
from composer.graph.lowering import Backend
from composer.model.head import Head
from composer.spec.document import HeadSpec
from composer.spec.loading import load_spec, load_specs
from composer.spec.resolve import Dimensions, Resolved, resolve
from composer.spec.shipped import shipped_specs

SMALL = Dimensions(hidden_size=24, layers=3, heads=4, key_heads=2, head_dim=8, rope_theta=100.0)
SHAPES = {
    "grouped": SMALL.shape(4),
    "one key head": Shape(hidden_size=12, heads=3, key_heads=1, head_dim=8),
    "no sharing": Shape(hidden_size=16, heads=2, key_heads=2, head_dim=8),
}


def complete(head: Mapping[str, Any], size: Dimensions = SMALL) -> HeadSpec:
    """A head, resolved. Raises GraphError where it cannot mean anything."""
    spec = load_spec({"compose": 1, "name": "case", "head": dict(head)})
    return resolve(spec, size).heads["head"]


def around(role: str, kind: str) -> dict[str, Any]:
    """A head in which this part does some work: a window above a state, with everything else at its plainest."""
    head: dict[str, Any] = {
        "position": "rope",
        "feature_map": "elu",
        "memory": [{"kind": "window", "size": 5, "weight": "learned"}, {"kind": "state"}],
    }
    if role == "memory":
        return {"position": "rope", **_alone(kind)}
    if role == "gate":
        head["memory"][1]["gate"] = kind
    elif role == "convolution":
        head["conv"] = {"kind": kind}
    elif role == "feature map":
        head["feature_map"] = kind
        if not CATALOGUE[role][kind].positive:
            head["memory"][1]["normalise"] = False
            head["read"] = "sum"
    else:
        head[role] = kind
    return head


def _alone(kind: str) -> dict[str, Any]:
    part = CATALOGUE["memory"][kind]
    assert issubclass(part, Memory)
    head: dict[str, Any] = {"memory": [{"kind": kind} | ({"evict": "drop", "size": 5} if part.bounded else {})]}
    return head | ({"feature_map": "hedgehog"} if part.reads == "features" else {})


def every_part() -> dict[str, HeadSpec]:
    """One head a part of the catalogue."""
    return {f"{role}: {kind}": complete(around(role, kind)) for role, kinds in CATALOGUE.items() for kind in kinds}


def every_spec() -> dict[str, Resolved]:
    """Every shipped spec on the small dimensions, its windows made small enough to overflow; of sweeps, every variant.

    Those that mean the same as one before (every ablation of a spec has the spec itself in it) are left out.
    """
    resolved: dict[str, Resolved] = {}
    for name, spec in (variant for shipped in shipped_specs() for variant in load_specs(shipped).items()):
        heads = {"head": spec.head} | {f"heads.{key}": head for key, head in spec.heads.items()}
        windows = [
            f"{where}.memory.{index}.size=5"
            for where, head in heads.items()
            for index, memory in enumerate(head.memory if head else ())
            if hasattr(memory, "size")
        ]
        case = resolve(load_spec(name, windows), SMALL)
        if case.hash not in {other.hash for other in resolved.values()}:
            resolved[name.replace(":", ": ")] = case
    return resolved


def every_head() -> dict[str, HeadSpec]:
    """All of the above, by a name that a failing test shows."""
    heads = every_part()
    for name, resolved in every_spec().items():
        heads |= {f"{name}.yaml: {head}": spec for head, spec in resolved.heads.items()}
    return heads


@dataclass
class Inputs:
    """What one call takes; ``cut`` takes some of its columns."""

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
        valid = None if tokens.valid is None else tokens.valid[:, columns]
        cut = Tokens(tokens.position[:, columns], segment, valid)
        return Inputs(*(tensor[:, columns] for tensor in self.tensors), cut)

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
        normal(shape.key_heads, shape.head_dim),
        Tokens(position),
    )


def built(spec: HeadSpec, shape: Shape, *, seed: int = 1, noise: float = 0.3) -> Head:
    """The head in float64, its parameters near their start but not at it."""
    head = Head(spec, shape).double()
    generator = torch.Generator().manual_seed(seed)
    for module in head.modules():
        if hasattr(module, "fill"):
            module.fill(generator)
    with torch.no_grad():
        for parameter in head.parameters():
            parameter += noise * torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
    return head


def run(head: Head, given: Inputs, state: State | None = None, backend: Backend = "torch") -> tuple[torch.Tensor, State]:
    """One call, from an empty state unless another is given."""
    if state is None:
        state = head.empty_state(given.query.shape[0], given.query.dtype, given.query.device)
    return head(*given.tensors, given.tokens, state, backend)


def pieces(length: int, bounds: tuple[int, ...]) -> list[slice]:
    """The slices between these bounds, from 0 to ``length``."""
    edges = sorted({0, length, *(bound for bound in bounds if 0 < bound < length)})
    return [slice(start, end) for start, end in pairwise(edges)]


def _values(annotation: Any, metadata: tuple[Any, ...] = ()) -> st.SearchStrategy[Any]:
    """Values of a field, whatever its type."""
    origin = get_origin(annotation)
    if origin is Annotated:
        inner, *more = get_args(annotation)
        return _values(inner, (*metadata, *more))
    if origin is Literal:
        return st.sampled_from(get_args(annotation))
    if origin in {Union, types.UnionType}:
        return st.one_of([_values(option) for option in get_args(annotation)])
    if origin is tuple:
        choices = get_args(get_args(annotation)[0])
        return st.lists(st.sampled_from(choices), min_size=1, max_size=len(choices), unique=True)
    if annotation is type(None):
        return st.none()
    if annotation is bool:
        return st.booleans()
    if annotation is int:
        return st.integers(1, 7)
    if annotation is float:
        top = next((float(bound.lt) for bound in metadata if isinstance(bound, annotated_types.Lt)), 20.0)
        return st.sampled_from([top * 0.125, top * 0.5])
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return _fields(annotation)
    raise NotImplementedError(f"the laws cannot draw a {annotation}; teach them here")


@st.composite
def _fields(draw: st.DrawFn, model: type[BaseModel]) -> dict[str, Any]:
    """A mapping of some of a schema's fields. Each is left out, at its default, half of the time."""
    chosen = {}
    for name, field in model.model_fields.items():
        fixed = name == "kind"
        if name in {"name", "weight", "evict", "scaling"} or not (fixed or field.is_required() or draw(st.booleans())):
            continue
        chosen[name] = draw(_values(field.annotation, tuple(field.metadata)))
    return chosen


@st.composite
def random_sizes(draw: st.DrawFn) -> Dimensions:
    """Any sizes: query heads share key heads or do not, and nothing divides the hidden size."""
    key_heads = draw(st.integers(1, 3))
    return Dimensions(
        hidden_size=draw(st.integers(3, 20)),
        layers=1,
        heads=key_heads * draw(st.integers(1, 3)),
        key_heads=key_heads,
        head_dim=2 * draw(st.integers(1, 5)),
        rope_theta=100.0,
    )


@st.composite
def random_heads(draw: st.DrawFn) -> tuple[HeadSpec, Shape]:
    """Any head that means something, on any sizes: a chain of memories, or several side by side, of any parts."""
    size = draw(random_sizes())
    return complete(draw(_heads()), size), size.shape(size.heads)


@st.composite
def _heads(draw: st.DrawFn) -> dict[str, Any]:
    kinds = {role: st.sampled_from(sorted(parts)) for role, parts in CATALOGUE.items()}
    flow = draw(st.sampled_from(["cascade", "parallel"]))
    count = draw(st.integers(1 if flow == "cascade" else 2, 3))
    memories: list[dict[str, Any]] = []
    for index in range(count):
        part = CATALOGUE["memory"][draw(kinds["memory"])]
        assert issubclass(part, Memory)
        last = index == count - 1
        if flow == "cascade" and not last and not part.bounded:
            part = CATALOGUE["memory"][draw(st.sampled_from(sorted(k for k, p in CATALOGUE["memory"].items() if p.bounded)))]
        memory = draw(_fields(part)) | {"name": f"m{index}"}
        if part.bounded and (last or flow == "parallel"):
            memory["evict"] = "drop"
        if count > 1:
            memory["weight"] = draw(st.sampled_from([None, "learned", 0.25]))
        memories.append({key: value for key, value in memory.items() if value is not None})
    head: dict[str, Any] = {
        "flow": flow,
        "memory": memories,
        "position": draw(_fields(CATALOGUE["position"][draw(kinds["position"])])),
    }
    if any(CATALOGUE["memory"][memory["kind"]].reads == "features" for memory in memories):
        mapping = draw(_fields(CATALOGUE["feature map"][draw(kinds["feature map"])]))
        if mapping.get("skip"):
            mapping.pop("dim", None)
        if mapping.get("linear") is False:
            mapping = {"kind": mapping["kind"], "linear": False, "bias": False}
        elif "linear" not in mapping:
            mapping = {key: value for key, value in mapping.items() if key in {"kind", "two_sided"}}
        head["feature_map"] = mapping
        if draw(st.booleans()):
            head["conv"] = draw(_fields(CATALOGUE["convolution"][draw(kinds["convolution"])]))
        if not CATALOGUE["feature map"][mapping["kind"]].positive:
            for memory in memories:
                if "normalise" in CATALOGUE["memory"][memory["kind"]].model_fields:
                    memory["normalise"] = False
    if count > 1:
        raw = any(memory.get("normalise") is False for memory in memories)
        reads = {kind: part for kind, part in CATALOGUE["read"].items() if not raw or part.takes_raw or part.leaves_masses_out}
        head["read"] = draw(st.sampled_from(sorted(reads)))
    if draw(st.booleans()):
        head["output"] = draw(_fields(CATALOGUE["output"][draw(kinds["output"])]))
    if flow == "parallel" and not all(CATALOGUE["memory"][memory["kind"]].bounded for memory in memories):
        for memory in memories:
            memory.pop("evict", None)
    return head
