"""A class of transformers as data: the heads of each type of layer, the tables of weights, the config.

Nothing here imports torch, so that ``compose explain --native`` compares a spec before a model is built. Functions in tables of
weights receive tensors, and import torch when they are called.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from blocks.positions import Rope
from composer.graph.composition import HeadSpec
from composer.spec.dimensions import Dimensions
from composer.spec.resolve import Resolved

Tensors = Callable[..., Any]
"""A function of the sizes of a model and of some of its tensors. Tensors that a model lacks are None."""
WeightTable = Mapping[str, tuple[Any, ...]]
"""By the class's name of a tensor: a function, and the names of the student's tensors that it receives."""


@dataclass(frozen=True)
class StudentModel:
    """A composed model, before or after its training.

    host: the model type of the blocks around the heads. config: the host's fields of ``config.json``. unrotated: layers in which
    the host does not rotate queries and keys.
    """

    resolved: Resolved
    host: str
    config: Mapping[str, Any]
    unrotated: frozenset[int] = frozenset()

    @property
    def size(self) -> Dimensions:
        return self.resolved.dimensions

    @property
    def epsilon(self) -> float:
        """Of the norms around the heads."""
        return self.config.get("rms_norm_eps", 1e-6)

    @property
    def has_windows(self) -> bool:
        """Whether the host has layers with a window of its own."""
        return self.config.get("sliding_window") is not None and self.config.get("use_sliding_window", True)

    @cached_property
    def heads(self) -> Mapping[str, HeadSpec]:
        """The heads by name. A rotation that the host computes itself is a plain ``rope``."""
        rope = model_rotation(self.size)
        return {name: with_model_rotation(head, rope) for name, head in self.resolved.heads.items()}

    def head_at(self, layer: int) -> HeadSpec:
        """Return the first heads of a layer."""
        return self.heads[self.resolved.layers[layer][0].head]

    def values(self, layer: int) -> Mapping[str, Any]:
        """Return the values that ``$NAME`` stands for in the heads of a class."""
        return {"$epsilon": self.epsilon, "$rotation": "none" if layer in self.unrotated else "rope"}


def model_rotation(size: Dimensions) -> Rope | None:
    """Return the rotation in the spec of a model on Llama's blocks; None if the host rotates by its own code."""
    return None if size.rope_theta is None else Rope(theta=size.rope_theta, scaling=size.rope_scaling)


def with_model_rotation(head: HeadSpec, rope: Rope | None) -> HeadSpec:
    """Return the head with a plain ``rope`` if the model around it can rotate. rope: as ``model_rotation`` returns it."""

    def is_models(position: Any) -> bool:
        return position.is_of_model or (rope is not None and position.base == rope.base)

    memories = (memory.model_copy(update={"position": Rope()}) if is_models(memory.rotation) else memory for memory in head.memory)
    return head.model_copy(update={"memory": tuple(memories)})


@dataclass(frozen=True)
class LayerType:
    """One type of layer of a class."""

    name: str
    """Its name in the class's ``layer_types``."""
    head: Mapping[str, Any]
    """The head, as a spec has it. ``$epsilon`` and ``$rotation`` are those of the model."""
    formula: str
    """What the class computes, the reason of conditions that ``reasons`` does not have."""
    reasons: Mapping[str, str] = field(default_factory=dict)
    """The reasons of single conditions, by the path of a field in the head."""
    any_value: frozenset[str] = frozenset()
    """Paths of fields that may have any value."""
    one_value: frozenset[str] = frozenset()
    """Those of ``any_value`` that have one value in all layers."""
    if_set: Mapping[str, Any] = field(default_factory=dict)
    """Fields of the head that may be left out, with their value where they are set."""
    module: str = "self_attn"
    """The class's name of the layer's attention."""
    weights: WeightTable = field(default_factory=dict)
    """Its tensors. Names of heads are left out of the student's names, and its memory is called ``memory``."""
    identities: Mapping[str, str] = field(default_factory=dict)
    """What the class has and a student may lack, by the student's name of the tensor, and how it is written then."""

    def document(self, actual: HeadSpec, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the head as a spec has it, for a student's head."""
        chosen = {name: value for name, value in self.if_set.items() if getattr(actual, name) is not None}
        return _fill({**self.head, **chosen}, values)

    def shape(self) -> HeadSpec:
        """Return the head with any values of the model, to compare kinds of memories."""
        return HeadSpec.model_validate(_fill(self.head, {"$epsilon": 1e-6, "$rotation": "rope"}))


def _fill(value: Any, values: Mapping[str, Any]) -> Any:
    if isinstance(value, Mapping):
        return {name: _fill(item, values) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_fill(item, values) for item in value]
    return values.get(value, value) if isinstance(value, str) else value


@dataclass(frozen=True)
class GgufClass:
    """A class of transformers as llama.cpp has it.

    - layer, ends: tensors of a layer, and those outside of layers, that are stored in another way, by llama.cpp's names. All others
      are stored unchanged.
    """

    architecture: str
    """Its name in llama.cpp."""
    names: str = "LLAMA"
    """The architecture in the package ``gguf`` that has the names of its tensors."""
    fields: Mapping[str, Any] = field(default_factory=dict)
    """Its metadata beside Llama's, by the key behind the architecture's name."""
    layer: WeightTable = field(default_factory=dict)
    ends: WeightTable = field(default_factory=dict)
    stretches: bool = False
    """Whether it reads a factor for each frequency of the rotation."""


def unknown_to_llama_cpp(config: Mapping[str, Any]) -> GgufClass | str:
    return f"it has no class for {config['model_type']}"


@dataclass(frozen=True)
class NativeTarget:
    """A class of transformers.

    - blocks, ends: the weights of each layer around its attention, and those outside of layers; empty: the model's own files.
    """

    name: str
    """Its model type, by which users name it. None as ``architecture``: the class of the host."""
    architecture: str | None
    spec: str
    """The shipped spec that fits it."""
    layers: tuple[LayerType, ...]
    """Its types of layers."""
    config: Callable[[StudentModel, list[LayerType]], dict[str, Any]]
    """Returns the fields of the class's config that Llama's lacks, for a student and the types of its layers."""
    hosts: tuple[str, ...] = ()
    """The hosts whose blocks it has; empty: any."""
    fixed: Mapping[str, Any] = field(default_factory=dict)
    """Fields of the host's config with their only value, which is also the value of a config without the field."""
    sees_all: bool = True
    """Whether the host must not have layers with windows of its own."""
    is_square: bool = False
    """Whether all query heads together must have as many numbers as the hidden state."""
    arrangement: Callable[[list[str]], Iterator[tuple[str, list[str]]]] | None = None
    """Yields what is wrong with the order of layer types, each with the reason and the right order."""
    model_type: str | None = None
    """The model type in the class's config."""
    blocks: WeightTable = field(default_factory=dict)
    ends: WeightTable = field(default_factory=dict)
    gguf: Callable[[Mapping[str, Any]], GgufClass | str] = unknown_to_llama_cpp
    """Returns the class of llama.cpp for the class's config, or why llama.cpp does not compute it."""

    @property
    def title(self) -> str:
        return self.architecture or "the host's own class"


OWN_TRUNK: Mapping[str, Any] = {"norm_type": "rms", "mlp_type": "gated", "position_embedding": "none", "residual_dropout": 0.0}
"""Fields of this project's own blocks, at which they are those of Llama."""
WITHOUT_BIAS: Mapping[str, Any] = OWN_TRUNK | {"mlp_bias": False, "hidden_act": "silu", "attention_bias": False}
"""Fields of Llama's blocks, at which they are those of all classes here."""
LLAMAS = ("llama", "mistral")
"""Hosts with the blocks of Llama."""

SOFTMAX: Mapping[str, Any] = {"position": "none", "memory": [{"kind": "full", "position": "$rotation"}]}
"""The head of softmax attention over all tokens."""


def needs_softmax(types: list[str]) -> Iterator[tuple[str, list[str]]]:
    """Yield the difference if no layer has softmax attention: the last one has it then."""
    if "full_attention" not in types:
        yield "no layer has softmax attention; the class needs one, whose cache counts the tokens", [*types[:-1], "full_attention"]


def as_stored(size: Dimensions, tensor: Any) -> Any:
    """Return the tensor unchanged."""
    return tensor


def less_one(size: Dimensions, weight: Any) -> Any:
    """Return the weight of a norm that multiplies by 1 + w."""
    return weight - 1


def plus_one(size: Dimensions, weight: Any) -> Any:
    """Return the weight of a norm that multiplies by w, of one that multiplies by 1 + w."""
    return weight + 1


def pairs_side_by_side(size: Dimensions, weight: Any) -> Any:
    """Return a projection's rows, or a bias, with the two numbers of each rotated pair beside each other."""
    return weight.unflatten(0, (-1, 2, size.head_dim // 2)).transpose(1, 2).flatten(0, 2)


ROTATED: WeightTable = {
    f"attn_{name}.{kind}": (pairs_side_by_side, f"self_attn.{name}_proj.{kind}") for name in "qk" for kind in ("weight", "bias")
}
"""Queries and keys where llama.cpp rotates numbers that are beside each other."""


def each_head(size: Dimensions, tensor: Any) -> Any:
    """Return numbers of key heads once for each of their query heads: n … -> H …. Those of query heads are unchanged."""
    return tensor.repeat_interleave(size.heads // len(tensor), dim=0)


def each_head_rows(size: Dimensions, weight: Any) -> Any:
    """Return a projection's rows, or a bias, of key heads once for each of their query heads."""
    return each_head(size, weight.unflatten(0, (-1, size.head_dim))).flatten(0, 1)
