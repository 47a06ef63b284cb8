"""Qwen2 and Qwen3 with windows in some of their layers, as ``layer_types`` in their configs has them."""

from __future__ import annotations

from typing import Any

from composer.exporting.targets.ministral import FULL, needs_window
from composer.exporting.targets.mistral import SLIDING, window_size
from composer.exporting.targets.target import LayerType, NativeTarget, StudentModel


def config_of(student: StudentModel, types: list[LayerType]) -> dict[str, Any]:
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
        config=config_of,
        gguf=lambda config: f"its class for {config['model_type']} ignores windows",
    )
    for kind in ("qwen2", "qwen3")
)
"""Their biases, and norms of queries and keys, are those of the source around every head."""
