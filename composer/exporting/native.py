"""Models that a class of transformers computes: the same formulas, so the same logits up to rounding.

Three kinds of models have such a class. Softmax attention in every layer is the host's own class. Windows on Llama's blocks are
Mistral, and beside layers of softmax Ministral. Layers of Gated DeltaNet beside softmax layers with norms of queries and keys are
Qwen3-Next. A model is written only where every formula and every size is the class's own; otherwise all differences are listed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel
from torch import Tensor
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

from blocks.memories.delta import Delta
from blocks.memories.full import Full
from blocks.memories.window import Window
from blocks.positions import NoPosition, Rope
from composer.errors import ExportError
from composer.exporting.modeling import model_rotation, with_model_rotation
from composer.exporting.qwen3_next import convert, delta_head, weight_differences
from composer.files import system_errors
from composer.graph.composition import HeadSpec
from composer.model.head import anatomy
from composer.model.heads import groups_of
from composer.model.hosts import attentions
from composer.weights.record import CONFIG
from converters.composed import ADAPTER_KEY, SPEC_KEYS, TRUNK_KEYS
from converters.model_types import OWN, PREFIX
from converters.source import GENERATION_CONFIG

START_ONLY = frozenset({"name", "bias", "slowest", "fastest"})
"""Fields of parts that name a part or set the values of its parameters at the start. Formulas do not depend on them."""
MOST_DIFFERENCES = 12
"""The most differences that one message lists."""


@dataclass(frozen=True)
class Native:
    """architecture: the class of transformers. config: its ``config.json``. weights: None if they are the model's own files;
    otherwise all tensors by the class's names."""

    architecture: str
    config: Mapping[str, Any]
    weights: Mapping[str, Tensor] | None = None

    @property
    def model_type(self) -> str:
        return self.config["model_type"]


@dataclass(frozen=True)
class LayerHead:
    """The heads of one group of a layer. name: of the group. model_rotates: True if the host rotates queries and keys there."""

    layer: int
    name: str
    spec: HeadSpec
    model_rotates: bool


def native_of(model: Any) -> Native:
    """Return the class, the config and the weights that transformers computes a model by.

    Raises ExportError with every difference between the model and the class that comes closest.
    """
    heads = list(_heads_of(model))
    kinds = {type(memory) for head in heads for memory in head.spec.memory}
    if Delta in kinds:
        return _qwen3_next(model, heads)
    if Window in kinds and kinds <= {Full, Window}:
        return _windows(model, heads)
    kind = _host_type(model)
    if differences := list(_different_heads(heads, lambda head: softmax_head(head.model_rotates))):
        raise _refusal(_class_of(kind).__name__, differences)
    if differences := list(trunk_differences(model)):
        raise _refusal("LlamaForCausalLM", differences)
    return _with_own_weights(model, kind, {})


def write_weights(native: Native, folder: Path) -> None:
    """Write converted weights, as transformers saves those of the class: in shards if there are many."""
    assert native.weights is not None, "the model's own files are linked otherwise"
    with torch.device("meta"):
        model = model_of(native)
    missing, unknown = model.load_state_dict(native.weights, strict=False, assign=True)
    model.tie_weights()
    tied = set(getattr(model, "all_tied_weights_keys", {}))
    assert not unknown, "every tensor has a name of the class"
    assert set(missing) <= tied, "every parameter of the class has its tensor"
    with system_errors(folder):
        model.save_pretrained(folder)
    for name in (CONFIG, GENERATION_CONFIG):  # the folder's documents are written by themselves
        (folder / name).unlink(missing_ok=True)


def model_of(native: Native) -> Any:
    """Build the class of transformers, with weights at their start."""
    fields = {name: value for name, value in native.config.items() if name != "model_type"}
    config = CONFIG_MAPPING[native.model_type](**fields)
    return _class_of(native.model_type)(config)


def _class_of(kind: str) -> Any:
    """Return the class of causal language models of a model type."""
    return MODEL_FOR_CAUSAL_LM_MAPPING[CONFIG_MAPPING[kind]]


def softmax_head(model_rotates: bool, **fields: Any) -> HeadSpec:
    """Return the head of softmax attention over all tokens."""
    position = Rope() if model_rotates else NoPosition()
    return HeadSpec(position=NoPosition(), memory=(Full(name="full", position=position),), **fields)


def _windows(model: Any, heads: list[LayerHead]) -> Native:
    """Return Mistral, or Ministral, whose config has a type for each layer; fewer engines know that class."""
    sizes = sorted({memory.size for head in heads for memory in head.spec.memory if isinstance(memory, Window)})

    def expected_spec(head: LayerHead) -> HeadSpec:
        full = softmax_head(True)
        if not isinstance(head.spec.memory[0], Window):
            return full
        window = Window(name="window", size=sizes[0], evict="drop", position=Rope())
        return full.model_copy(update={"memory": (window,)})

    differences = [*_different_heads(heads, expected_spec), *llama_differences(model)]
    by_layer = {head.layer: type(head.spec.memory[0]) for head in heads}
    if any(type(head.spec.memory[0]) is not by_layer[head.layer] for head in heads):
        differences.append("a layer has heads with a window and heads without one; expected one kind of head in each layer")
    is_mixed = Full in by_layer.values()
    kind = "ministral" if is_mixed else "mistral"
    if differences:
        raise _refusal(_class_of(kind).__name__, differences)
    types = ["sliding_attention" if by_layer[layer] is Window else "full_attention" for layer in sorted(by_layer)]
    return _with_own_weights(model, kind, {"sliding_window": sizes[0]} | ({"layer_types": types} if is_mixed else {}))


def _qwen3_next(model: Any, heads: list[LayerHead]) -> Native:
    def expected_spec(head: LayerHead) -> HeadSpec:
        if isinstance(head.spec.memory[0], Delta):
            return delta_head(head.spec, model.config)
        # Norms of queries and keys are compared with an epsilon of the class; a missing output gate is written as one that is 1.
        norm = {"kind": "rms", "epsilon": model.config.rms_norm_eps}
        gate = {"kind": "gate"} if head.spec.output is not None else None
        return softmax_head(True, qk_norm=norm, output=gate)

    differences = [*_different_heads(heads, expected_spec), *llama_differences(model)]
    counts = {layer: sum(head.layer == layer for head in heads) for layer in {head.layer for head in heads}}
    differences += [f"layer {layer}: {count} groups of heads; expected 1" for layer, count in counts.items() if count > 1]
    if not any(isinstance(head.spec.memory[0], Full) for head in heads):
        differences.append("no layer has softmax attention; the class needs one, whose cache counts the tokens")
    differences += weight_differences(model, heads)
    if differences:
        raise _refusal("Qwen3NextForCausalLM", differences)
    config, weights = convert(model, heads)
    return Native("Qwen3NextForCausalLM", _config_of(model, "qwen3_next", config), weights)


def _with_own_weights(model: Any, kind: str, changes: Mapping[str, Any]) -> Native:
    """Return the class of a model type, for a model whose tensors have the names and sizes that the class has."""
    architecture = _class_of(kind).__name__
    return Native(architecture, _config_of(model, kind, changes))


def _config_of(model: Any, kind: str, changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of the model's config that the class has, with changes."""
    left_out = {
        *SPEC_KEYS,
        *TRUNK_KEYS,
        ADAPTER_KEY,
        "auto_map",
        "_name_or_path",
        "transformers_version",
        "architectures",
        "model_type",
    }
    fields = {name: value for name, value in model.config.to_dict().items() if name not in left_out}
    if kind != _host_type(model):
        known = CONFIG_MAPPING[kind]().to_dict()
        fields = {name: value for name, value in fields.items() if name in known}
    architecture = _class_of(kind).__name__
    return {"architectures": [architecture], "model_type": kind, **fields, **changes}


def _heads_of(model: Any) -> Iterator[LayerHead]:
    rope = model_rotation(model)
    for _, attention in attentions(model):
        for name, module in groups_of(attention.composed):
            spec = with_model_rotation(anatomy(module).head, rope)
            yield LayerHead(attention.layer, name, spec, bool(attention.facts.rotates) or rope is not None)


def _host_type(model: Any) -> str:
    kind: str = model.config.model_type
    return "llama" if kind == OWN else kind.removeprefix(PREFIX)


def trunk_differences(model: Any) -> Iterator[str]:
    """Yield how the blocks around the heads differ from the host's own class, for a trunk that a spec describes."""
    if model.config.model_type == OWN:
        expected = {"norm_type": "rms", "mlp_type": "gated", "position_embedding": "none", "residual_dropout": 0.0}
        for field, value in expected.items():
            if (configured := getattr(model.config, field)) != value:
                yield f"{field} is {configured}; expected {value}"


def llama_differences(model: Any) -> Iterator[str]:
    """Yield how the blocks around the heads differ from Llama's without biases, which Mistral, Ministral and Qwen3-Next share."""
    if _host_type(model) != "llama":
        yield f"the blocks around the heads are those of {_host_type(model)}; expected those of llama"
        return
    yield from trunk_differences(model)
    for field, value in {"attention_bias": False, "mlp_bias": False, "hidden_act": "silu"}.items():
        if (configured := getattr(model.config, field)) != value:
            yield f"{field} is {configured}; expected {value}"


def _different_heads(heads: list[LayerHead], expected: Callable[[LayerHead], HeadSpec]) -> Iterator[str]:
    """Yield every difference between heads and those that a class has, each with the layers that have it."""
    layers: dict[str, list[int]] = {}
    for head in heads:
        for difference in field_differences(head.spec, expected(head)):
            layers.setdefault(difference, []).append(head.layer)
    for difference, where in layers.items():
        named = ", ".join(str(layer) for layer in dict.fromkeys(where))
        yield f"layer{'s' if len(set(where)) > 1 else ''} {named}: {difference}"


def field_differences(actual: Any, expected: Any, path: str = "") -> Iterator[str]:
    """Yield the fields in which two heads differ, as a spec names them."""
    if isinstance(actual, BaseModel) and type(actual) is type(expected):
        for name in type(actual).model_fields:
            if name not in START_ONLY:
                yield from field_differences(getattr(actual, name), getattr(expected, name), f"{path}.{name}".lstrip("."))
    elif isinstance(actual, tuple) and isinstance(expected, tuple) and len(actual) == len(expected):
        for index, (item, other) in enumerate(zip(actual, expected, strict=True)):
            yield from field_differences(item, other, f"{path}.{index}")
    elif actual != expected:
        yield f"`{path}` is {_in_words(actual)}; expected {_in_words(expected)}"


def _in_words(value: Any) -> str:
    if isinstance(value, BaseModel):
        return str(getattr(value, "kind", type(value).__name__))
    if isinstance(value, tuple):
        return "[" + ", ".join(_in_words(item) for item in value) + "]"
    return "not set" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def _refusal(architecture: str, differences: list[str]) -> ExportError:
    more = len(differences) - MOST_DIFFERENCES
    lines = [*differences[:MOST_DIFFERENCES], *([f"{more} more"] if more > 0 else [])]
    return ExportError(
        f"transformers has no class with these heads. {architecture} comes closest, and differs in {len(differences)} "
        f"point{'s' if len(differences) > 1 else ''}:\n"
        + "".join(f"- {line}\n" for line in lines)
        + "Export without this option: the folder then has a Python file of its own."
    )
