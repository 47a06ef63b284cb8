"""Which layers of a model see the last tokens alone, read from its ``config.json``."""

from __future__ import annotations

from collections.abc import Mapping

from converters.config import positive_int
from converters.errors import ConfigError
from converters.family import Config

EVERY = frozenset({"mistral", "mixtral", "ministral", "phi3", "phimoe", "starcoder2"})
"""Families whose layers all have the window, where the config has one and names no layers."""
EACH_NTH_SEES_ALL: Mapping[str, int] = {"cohere2": 4, "gemma2": 2, "gemma3_text": 6}
"""Families in which, of so many layers, the last sees everything, where the config names no layers."""
FROM_A_LAYER_ON = frozenset({"qwen2", "qwen2_moe", "qwen3", "qwen3_moe"})
"""Families with a window only if ``use_sliding_window`` is set; their first ``max_window_layers`` layers have none."""


def local_layers(model_type: str, config: Config, layers: int) -> tuple[int | None, ...] | None:
    """Return the window of each layer, in tokens, the query's own included; None for a layer without one, and if no layer has one.
    If neither the config nor its family determines the layers, none has a window. Raises ConfigError if the number of kinds is not
    that of the layers.
    """
    window, kinds = config.get("sliding_window"), config.get("layer_types")
    used = config.get("use_sliding_window", model_type not in FROM_A_LAYER_ON)
    if not isinstance(window, int) or window < 1 or not used:
        return None
    if kinds is not None:
        if not isinstance(kinds, list) or len(kinds) != layers:
            raise ConfigError(f"config.json: layer_types must be a list with one type for each of its {layers:,} layers.")
        local = [kind == "sliding_attention" for kind in kinds]
    elif model_type in EVERY:
        local = [True] * layers
    elif model_type in EACH_NTH_SEES_ALL:
        every = positive_int(config, "sliding_window_pattern", EACH_NTH_SEES_ALL[model_type])
        local = [(layer + 1) % every != 0 for layer in range(layers)]
    elif model_type in FROM_A_LAYER_ON:
        first = config.get("max_window_layers")
        local = [isinstance(first, int) and layer >= first for layer in range(layers)]
    else:
        return None
    return tuple(window if is_local else None for is_local in local) if any(local) else None
