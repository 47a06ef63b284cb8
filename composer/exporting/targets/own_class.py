"""The class of the source: softmax attention in every layer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from composer.exporting.targets.mistral import granite_with_windows
from composer.exporting.targets.target import (
    OWN_TRUNK,
    ROTATED,
    SOFTMAX,
    GgufClass,
    LayerType,
    NativeTarget,
    unknown_to_llama_cpp,
)


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


TARGET = NativeTarget(
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
