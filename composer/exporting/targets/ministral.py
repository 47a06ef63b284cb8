"""Ministral: layers of Mistral's windows beside layers of softmax attention over all tokens. Fewer engines have this class."""

from __future__ import annotations

from collections.abc import Iterator

from composer.exporting.targets.mistral import SLIDING, granite_with_windows, window_size
from composer.exporting.targets.target import LLAMAS, SOFTMAX, WITHOUT_BIAS, LayerType, NativeTarget

FULL = LayerType(name="full_attention", head=SOFTMAX, formula="the class has softmax attention over all tokens")


def needs_window(types: list[str]) -> Iterator[tuple[str, list[str]]]:
    """Yield the difference if no layer has a window: the first one has it then."""
    if SLIDING.name not in types:
        yield "no layer has a window, whose size the class's config has", [SLIDING.name, *types[1:]]


TARGET = NativeTarget(
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
