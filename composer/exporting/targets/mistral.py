"""Mistral: softmax attention in a sliding window of one size in every layer, on Llama's blocks without biases."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from blocks.legend import torch
from composer.exporting.targets.target import LLAMAS, ROTATED, WITHOUT_BIAS, GgufClass, LayerType, NativeTarget, StudentModel
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


TARGET = NativeTarget(
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
