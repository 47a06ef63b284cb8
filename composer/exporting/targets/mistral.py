"""Mistral: softmax attention in a sliding window of one size in every layer, on Llama's blocks without biases."""

from __future__ import annotations

from typing import Any

from composer.exporting.targets.target import LLAMAS, WITHOUT_BIAS, LayerType, NativeTarget, StudentModel

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


TARGET = NativeTarget(
    name="mistral",
    architecture="MistralForCausalLM",
    model_type="mistral",
    spec="native/mistral",
    layers=(SLIDING,),
    hosts=LLAMAS,
    fixed=WITHOUT_BIAS,
    config=window_size,
)
