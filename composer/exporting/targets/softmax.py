"""Classes with softmax attention: over all tokens, as the source has it, or in sliding windows of one size."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from blocks.legend import torch
from composer.exporting.targets.target import (
    LLAMAS,
    OWN_TRUNK,
    ROTATED,
    SOFTMAX,
    WITHOUT_BIAS,
    GgufClass,
    LayerType,
    NativeTarget,
    StudentModel,
    unknown_to_llama_cpp,
)
from composer.spec.dimensions import Dimensions

SINK = -1e30
"""A logit whose exponential is 0 beside any other."""

SLIDING = LayerType(
    name="sliding_attention",
    head={"position": "none", "memory": [{"kind": "window", "size": 1024, "evict": "drop", "position": "$rotation"}]},
    formula="the class has softmax attention over the last tokens, and nothing before them",
    any_value=frozenset({"memory.0.size"}),
    one_value=frozenset({"memory.0.size"}),
)


def window_size(student: StudentModel, types: list[LayerType]) -> dict[str, Any]:
    """Return the size of the windows: a token sees so many tokens, its own among them."""
    names = [kind.name for kind in types]
    memory: Any = student.head_at(names.index(SLIDING.name)).memory[0]
    return {"sliding_window": memory.size}


def no_sinks(size: Dimensions) -> Any:
    """Return the logits of attention sinks that receive no weight."""
    return torch.full((size.heads,), SINK)


def granite_with_windows(config: Mapping[str, Any]) -> GgufClass:
    """Return llama.cpp's Granite, whose layers have windows or see all tokens. Its class for Mistral ignores windows."""
    types = config.get("layer_types") or [SLIDING.name] * config["num_hidden_layers"]
    return GgufClass(
        architecture="granite_swa",
        fields={
            "attention.sliding_window": config["sliding_window"],
            "attention.sliding_window_pattern": [kind == SLIDING.name for kind in types],
            "logit_scale": 1.0,
        },
        layer={**ROTATED, "attn_sinks.weight": (no_sinks,)},
        stretches=True,
    )


MISTRAL = NativeTarget(
    name="mistral",
    architecture="MistralForCausalLM",
    model_type="mistral",
    spec="native/mistral",
    layers=(SLIDING,),
    hosts=LLAMAS,
    fixed=WITHOUT_BIAS,
    config=window_size,
    gguf=granite_with_windows,
)


FULL = LayerType(name="full_attention", head=SOFTMAX, formula="the class has softmax attention over all tokens")


def needs_window(types: list[str]) -> Iterator[tuple[str, list[str]]]:
    """Yield the difference if no layer has a window: the first one has it then."""
    if SLIDING.name not in types:
        yield "no layer has a window, whose size the class's config has", [SLIDING.name, *types[1:]]


MINISTRAL = NativeTarget(
    name="ministral",
    architecture="MinistralForCausalLM",
    model_type="ministral",
    spec="native/ministral",
    layers=(SLIDING, FULL),
    hosts=LLAMAS,
    fixed=WITHOUT_BIAS,
    arrangement=needs_window,
    config=lambda student, types: {**window_size(student, types), "layer_types": [kind.name for kind in types]},
    gguf=granite_with_windows,
)


def config_of_qwen(student: StudentModel, types: list[LayerType]) -> dict[str, Any]:
    return {**window_size(student, types), "use_sliding_window": True, "layer_types": [kind.name for kind in types]}


QWEN2, QWEN3 = (
    NativeTarget(
        name=kind,
        architecture=f"{kind.title()}ForCausalLM",
        model_type=kind,
        spec="native/ministral",
        layers=(SLIDING, FULL),
        hosts=(kind,),
        arrangement=needs_window,
        config=config_of_qwen,
        gguf=lambda config: f"its class for {config['model_type']} ignores windows",
    )
    for kind in ("qwen2", "qwen3")
)
"""Their biases, and norms of queries and keys, are those of the source around every head."""


def gguf_of_host(config: Mapping[str, Any]) -> GgufClass | str:
    """Return the class of llama.cpp for a model of Llama, Mistral, Qwen2 or Qwen3."""
    kind = config["model_type"]
    has_windows = config.get("sliding_window") is not None and config.get("use_sliding_window", True)
    if kind == "mistral" and has_windows:
        return granite_with_windows(config)
    if kind in ("llama", "mistral"):
        return GgufClass("llama", layer=ROTATED, stretches=True)
    if kind in ("qwen2", "qwen3"):
        return f"its class for {kind} ignores the windows of the source" if has_windows else GgufClass(kind, kind.upper())
    return unknown_to_llama_cpp(config)


SOURCE_CLASS = NativeTarget(
    name="source",
    architecture=None,
    spec="softmax",
    layers=(LayerType(name="full_attention", head=SOFTMAX, formula="the source's class has softmax attention over all tokens"),),
    fixed=OWN_TRUNK,
    sees_all=False,
    config=lambda student, types: {},
    gguf=gguf_of_host,
)
"""On any host. The model's own files are the class's."""
