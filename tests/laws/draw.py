"""Random heads for the laws: any parts of the catalogue, values of fields, flows and sizes. No part is named here, so a new part
is drawn with all values of its fields. Heads that the graph rejects are drawn again.
"""

from __future__ import annotations

import functools
import types
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import annotated_types
from hypothesis import assume
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from blocks.catalogue import CATALOGUE
from blocks.legend import Shape
from blocks.memories.base import Memory
from blocks.operation import Kind
from blocks.registry import Role
from composer.errors import GraphError, SpecError
from composer.graph.composition import HeadSpec
from composer.spec.dimensions import Dimensions
from tests.laws.cases import complete

LEFT_OUT = {"name", "weight", "evict", "scaling", "both_ways"}
"""What the flow decides, what nothing but a Llama checkpoint says, and what no causal head may have."""


def _values(annotation: Any, metadata: tuple[Any, ...] = ()) -> st.SearchStrategy[Any]:
    """Return a strategy for a field of any type."""
    if roles := [item for item in metadata if isinstance(item, Role)]:
        return st.one_of([_fields(part) for part in roles[0].values()])
    origin = get_origin(annotation)
    if origin is Annotated:
        inner, *more = get_args(annotation)
        bounds = [bound for constraint in more for bound in getattr(constraint, "metadata", (constraint,))]
        return _values(inner, (*metadata, *bounds))
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
        top = next((int(bound.le) for bound in metadata if isinstance(bound, annotated_types.Le)), 7)
        return st.integers(1, min(top, 7))
    if annotation is float:
        top = next((float(bound.lt) for bound in metadata if isinstance(bound, annotated_types.Lt)), 20.0)
        return st.sampled_from([top * 0.125, top * 0.5])
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return _fields(annotation)
    raise NotImplementedError(f"the laws cannot draw a {annotation}; teach them here")


@functools.cache
def _field(model: type[BaseModel], name: str) -> st.SearchStrategy[Any]:
    """Return a cached strategy for a schema's field, since making one takes longer than drawing."""
    field = model.model_fields[name]
    return _values(field.annotation, tuple(field.metadata))


@functools.cache
@st.composite
def _fields(draw: st.DrawFn, model: type[BaseModel]) -> dict[str, Any]:
    """Draw a mapping of a schema's fields. Each is left at its default half of the time."""
    chosen = {}
    for name, field in model.model_fields.items():
        fixed = name == "kind"
        if name in LEFT_OUT or not (fixed or field.is_required() or draw(st.booleans())):
            continue
        chosen[name] = draw(_field(model, name))
    return chosen


@st.composite
def random_sizes(draw: st.DrawFn) -> Dimensions:
    """Draw sizes: query heads may share key heads, and the hidden size need not be divisible."""
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
    """Draw a valid head with its sizes."""
    size = draw(random_sizes())
    head = draw(_heads(size))
    try:
        return complete(head, size), size.shape(size.heads)
    except (GraphError, SpecError):
        assume(False)
        raise


@st.composite
def _heads(draw: st.DrawFn, size: Dimensions) -> dict[str, Any]:
    """Draw a chain of memories, parallel memories, or a window that feeds all others, with the parts around them."""
    memories, flow = draw(_memories(size))
    parts = [CATALOGUE["memory"][memory["kind"]] for memory in memories]
    head: dict[str, Any] = {**flow, "memory": memories, "position": draw(_part("position"))}
    raw = inputs = False
    if any(part.reads is Kind.FEATURES for part in parts if issubclass(part, Memory)):
        mapping = draw(_feature_map())
        head["feature_map"] = mapping
        if draw(st.booleans()):
            head["conv"] = draw(_part("convolution"))
        if not CATALOGUE["feature map"][mapping["kind"]].positive:
            for memory in memories:
                if "normalise" in CATALOGUE["memory"][memory["kind"]].model_fields:
                    memory["normalise"] = False
    for memory, part in zip(memories, parts, strict=True):
        assert issubclass(part, Memory)
        inputs = inputs or part.reads is Kind.HIDDEN
        try:
            raw = raw or not part.model_validate(memory).has_mass()
        except ValidationError:  # fields that do not go together
            assume(False)
    if len(memories) > 1:
        reads = tuple(
            kind
            for kind, part in CATALOGUE["read"].items()
            if part.leaves_masses_out or (not inputs and (not raw or part.takes_raw))
        )
        head["read"] = draw(_part("read", reads))
        if len({part.exact for part in parts}) == 1:
            head["read"].pop("scale", None)
    pairs = any(part.reads is not Kind.HIDDEN for part in parts)
    if draw(st.booleans()):
        mixer = draw(_part("mix input"))
        looks = inputs or any(memory.get("weight") == "token" for memory in memories)
        mixer["feeds"] = draw(st.sampled_from(["inputs"] * looks + ["qk"] * pairs))
        if "blocks" in mixer and size.hidden_size % mixer["blocks"]:
            mixer["blocks"] = size.hidden_size
        head["mix_input"] = mixer
    if draw(st.booleans()):
        head["unshare"] = draw(_part("unshare"))
        if not pairs or head.get("mix_input", {}).get("feeds") == "qk":
            head["unshare"] = {"kind": "copies", "inputs": ["v"]}
    for field, role in (("output", "output"), ("qk_norm", "qk norm"), ("value_position", "value position")):
        if draw(st.booleans()):
            head[field] = draw(_part(role))
    return head


@st.composite
def _memories(draw: st.DrawFn, size: Dimensions) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Draw memories from top to bottom, and the flow of pairs."""
    kinds: dict[str, type[Memory]] = {kind: part for kind, part in CATALOGUE["memory"].items() if issubclass(part, Memory)}
    flow = draw(st.sampled_from(["cascade", "parallel", "graph"]))
    count = draw(st.integers(1 if flow == "cascade" else 2, 3))
    memories: list[dict[str, Any]] = []
    for index in range(count):
        above, last = flow == "cascade" or (flow == "graph" and index == 0), index == count - 1
        fitting = [kind for kind, part in kinds.items() if count == 1 or flow == "parallel" or part.reads is not Kind.HIDDEN]
        if above and not last:
            fitting = [kind for kind in fitting if kinds[kind].bounded]
        elif memories and "keep" in kinds[memories[-1]["kind"]].model_fields:
            fitting = [kind for kind in fitting if kinds[kind].reads is Kind.FEATURES]
        part = kinds[draw(st.sampled_from(fitting))]
        memory = draw(_fields(part)) | {"name": f"m{index}"}
        falls = above and not last
        if part.bounded and not falls:
            memory["evict"] = "drop"
        if "keep" in part.model_fields and not falls:
            memory["keep"] = draw(st.sampled_from(["recent", "random"]))
        if not part.bounded and "size" in part.model_fields:
            memory["size"] = size.heads * draw(st.integers(1, 3))
        if count > 1 and part.reads is not Kind.HIDDEN:
            memory["weight"] = draw(_field(part, "weight"))
            if memory["weight"] == "same" and (not memories or memories[-1].get("weight") is None):
                memory["weight"] = None
        memories.append({key: value for key, value in memory.items() if value is not None})
    if flow == "parallel" and not all(kinds[memory["kind"]].bounded for memory in memories):
        for memory in memories:
            memory.pop("evict", None)
    if flow == "graph":
        return memories, {"graph": ["pairs -> m0", *(f"m0 -> m{index}" for index in range(1, count))]}
    return memories, {"flow": flow}


@functools.cache
@st.composite
def _part(draw: st.DrawFn, role: str, kinds: tuple[str, ...] | None = None) -> dict[str, Any]:
    """Draw any part of a role."""
    return draw(_fields(CATALOGUE[role][draw(st.sampled_from(sorted(kinds or CATALOGUE[role])))]))


@st.composite
def _feature_map(draw: st.DrawFn) -> dict[str, Any]:
    """Draw any feature map. Options of its matrix are drawn only if it has one."""
    mapping = draw(_part("feature map"))
    if mapping.get("skip"):
        mapping.pop("dim", None)
    if mapping.get("linear") is False:
        return {"kind": mapping["kind"], "linear": False, "bias": False}
    if "linear" not in mapping:
        return {key: value for key, value in mapping.items() if key in {"kind", "two_sided"}}
    return mapping
